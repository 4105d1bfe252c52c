"""Messages too large for one entry: cut into chunks by producers, joined again by consumers.

Owns `cut`, and `ChunkAssembler` with the rules of what becomes of each chunk of one subscription's
topic or partition. Pure: it says what to ack, what to hand back and how many permits to give back;
the caller does so. Chunks of a message come in order, those of several messages mixed.
Invariant: a chunk's id is held here, or in exactly one answer: joined, or let go with its fate.
What is held is bounded by number, bytes and age. Nothing is acked for its age that has not been
handed back once before: brokers skip entries when a rewind comes during a read
(`docs/notes/wire-protocol.md#rewind-during-a-read`).
Refuses to join what does not add up.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from ..errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from . import pulsar_pb2 as pb
    from .checksum import Data

Place: TypeAlias = tuple[int, int]
"""Ledger and entry."""

_Key = TypeVar("_Key", Place, str)

_BOOKKEEPING: Final = 300  # bytes a chunk takes besides its payload, so that tiny ones are bounded
_MAX_REMEMBERED: Final = 10_000  # of what was handed back
# Whoever else has the missing part gives it back when that is incomplete for too long, and may have
# to do so twice.
_GAP_EXPIRIES: Final = 3


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk as it arrived.

    Attributes:
        uuid: The same in all chunks of a message.
        index: 0 for the first.
        count: How many the message has.
        total: Bytes of all of them together, 0 when the producer did not say.
        place: Its entry.
        payload: Decrypted, not decompressed; kept until the message is joined or let go.
        redelivery_count: The broker's.
        sealed: It could not be decrypted, and is larger than `total` says.
    """

    uuid: str
    index: int
    count: int
    total: int
    place: Place
    payload: Data
    redelivery_count: int = 0
    sealed: bool = False


class ChunkFate(Enum):
    """What is to be done with entries that are not kept."""

    ACK = "ack"
    """They will never be part of a message."""

    REDELIVER = "redeliver"
    """All of them together and after a while: at once, they would go round in circles."""

    REFUSE = "refuse"
    """The message is larger than the client accepts. They are acked with the validation error
    UncompressedSizeCorruption, because asking for them again would bring the same bytes."""


class DiscardedChunks(NamedTuple):
    """Entries that are not kept any more, never joined, and what to do with them.

    Attributes:
        uuid: Of the message they belong to.
        places: In the order of their arrival.
        fate: What to do.
        reason: For a log line.
        is_first: False for a later chunk of a message that was refused before.
    """

    uuid: str
    places: tuple[Place, ...]
    fate: ChunkFate
    reason: str
    is_first: bool = True


class JoinedMessage(NamedTuple):
    """A complete message.

    Attributes:
        payload: All chunks, in order; to be decompressed, its size then compared.
        places: The entry of each chunk, in order: it is acked, nacked and sought by all of them.
        redelivery_count: The lowest of its chunks': they come again for want of each other, too.
        sealed: One of its chunks could not be decrypted.
    """

    payload: bytes
    places: tuple[Place, ...]
    redelivery_count: int = 0
    sealed: bool = False


class ChunkArrival(NamedTuple):
    """What becomes of a chunk, and of others because of it.

    Attributes:
        joined: The message that it completes.
        credit: Permits to give back: 1, but for the last chunk of a message, whose permit is the
            message's own.
        let_go: In order.
    """

    joined: JoinedMessage | None = None
    credit: int = 1
    let_go: tuple[DiscardedChunks, ...] = ()


KEPT = ChunkArrival()
"""Kept for the message it is part of, or a redelivery of one that is kept."""


@dataclass(slots=True)
class _Pending:
    """The chunks of one message so far."""

    count: int
    total: int
    newest_ms: int
    parts: list[bytes] = field(default_factory=list)
    places: dict[Place, None] = field(default_factory=dict)
    size: int = 0
    redelivery_count: int = 0
    sealed: bool = False

    @property
    def held(self) -> int:
        return self.size + _BOOKKEEPING * len(self.parts)


class ChunkAssembler:
    """Joins the chunks that arrive at one consumer from one topic or partition.

    It must be told of a lost connection (`clear`): all that was not acked comes again.

    Args:
        max_messages: Incomplete messages held, 0 for no limit; the one whose newest chunk is the
            oldest is let go for another (`max_pending_chunked_message`).
        max_bytes: Bytes held of all of them together. A message above that is refused
            (`max_uncompressed_size` of the client).
        expire_ms: How long an incomplete message waits for its next chunk.
        ack_oldest: Whether the one let go for another is acked and so lost, or comes again
            (`auto_ack_oldest_chunked_message_on_queue_full`).

    Raises:
        ConfigurationError: A limit out of range; names it.
    """

    def __init__(
        self,
        *,
        max_messages: int = 10,
        max_bytes: int = 256 * 1024 * 1024,
        expire_ms: int = 60_000,
        ack_oldest: bool = False,
    ) -> None:
        for name, value, least in (
            ("max_messages", max_messages, 0),
            ("max_bytes", max_bytes, 1),
            ("expire_ms", expire_ms, 1),
        ):
            if value < least:
                raise ConfigurationError(f"{name} must be {least} or more, not {value}")
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._expire_ms = expire_ms
        self._overflow = ChunkFate.ACK if ack_oldest else ChunkFate.REDELIVER
        # By their newest chunk, oldest first.
        self._pending: OrderedDict[str, _Pending] = OrderedDict()
        self._held = 0
        # Where a chunk is missing, since when; and messages that were handed back, for want of room
        # and of the next chunk.
        self._gaps: OrderedDict[Place, int] = OrderedDict()
        self._overflowed: OrderedDict[str, int] = OrderedDict()
        self._expired: OrderedDict[str, int] = OrderedDict()
        # Messages that are too large. Their later chunks have the same fate as the first ones.
        self._refused: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        """Incomplete messages held."""
        return len(self._pending)

    @property
    def held(self) -> int:
        """Bytes held."""
        return self._held

    def add(self, chunk: Chunk, *, now_ms: int) -> ChunkArrival:
        """Decide what becomes of a chunk.

        Args:
            chunk: As it arrived.
            now_ms: Monotonic ms.
        """
        uuid = chunk.uuid
        pending = self._pending.get(uuid)
        if pending is not None and chunk.place in pending.places:
            return KEPT
        if not 0 <= chunk.index < chunk.count or chunk.total < 0:
            reason = f"chunk {chunk.index} of {chunk.count}, {chunk.total} bytes"
            return _discard_one(chunk, ChunkFate.ACK, reason)
        if chunk.total > self._max_bytes or uuid in self._refused:
            return self._refuse(chunk, now_ms)
        if pending is None:
            if chunk.index:
                return self._gap(chunk, None, now_ms)
        elif chunk.index == 0:
            # Written again from the start: what was written before stays without an end.
            restarted = self._discard(uuid, ChunkFate.ACK, "begun again by the producer")
            arrival = self._keep(chunk, _Pending(chunk.count, chunk.total, now_ms), now_ms)
            return arrival._replace(let_go=(restarted, *arrival.let_go))
        elif chunk.index < len(pending.parts):
            return _discard_one(chunk, ChunkFate.ACK, f"a copy of chunk {chunk.index}")
        elif chunk.index > len(pending.parts):
            return self._gap(chunk, pending, now_ms)
        elif (chunk.count, chunk.total) != (pending.count, pending.total):
            kept = self._discard(
                uuid, ChunkFate.ACK, "its chunks differ in their count or total size"
            )
            return ChunkArrival(let_go=(kept._replace(places=(*kept.places, chunk.place)),))
        return self._keep(chunk, pending or _Pending(chunk.count, chunk.total, now_ms), now_ms)

    def _refuse(self, chunk: Chunk, now_ms: int) -> ChunkArrival:
        """Refuse a chunk of a message that is too large, with the chunks held of it."""
        uuid = chunk.uuid
        held = tuple(self._remove(uuid).places) if uuid in self._pending else ()
        is_first = chunk.index == 0 or uuid not in self._refused
        _remember(self._refused, uuid, now_ms)
        reason = f"its chunks announce {chunk.total} bytes, {self._limit}"
        places = (*held, chunk.place)
        return ChunkArrival(
            let_go=(DiscardedChunks(uuid, places, ChunkFate.REFUSE, reason, is_first),)
        )

    @property
    def _limit(self) -> str:
        return f"the limit is {self._max_bytes} bytes (max_uncompressed_size)"

    def _keep(self, chunk: Chunk, pending: _Pending, now_ms: int) -> ChunkArrival:
        """Keep a chunk that is the next of its message; see whether it is the last."""
        uuid = chunk.uuid
        self._held -= pending.held
        pending.parts.append(bytes(chunk.payload))  # a view would keep all that was read with it
        pending.places[chunk.place] = None
        pending.size += len(chunk.payload)
        pending.newest_ms = now_ms
        pending.sealed = pending.sealed or chunk.sealed
        least = chunk.redelivery_count if chunk.index == 0 else pending.redelivery_count
        pending.redelivery_count = min(least, chunk.redelivery_count)
        self._held += pending.held
        self._pending[uuid] = pending
        self._pending.move_to_end(uuid)
        self._overflowed.pop(uuid, None)
        complete = len(pending.parts) == pending.count
        if (pending.total and not pending.sealed) and (
            pending.size != pending.total if complete else pending.size > pending.total
        ):
            reason = f"{pending.size} bytes, its chunks announce {pending.total}"
            return ChunkArrival(let_go=(self._discard(uuid, ChunkFate.ACK, reason),))
        if complete:
            self._remove(uuid)
            self._expired.pop(uuid, None)
            joined = JoinedMessage(
                b"".join(pending.parts),
                tuple(pending.places),
                pending.redelivery_count,
                pending.sealed,
            )
            return ChunkArrival(joined, 0)
        return ChunkArrival(let_go=self._discard_overflow(now_ms))

    def _discard_overflow(self, now_ms: int) -> tuple[DiscardedChunks, ...]:
        """Those let go so that what was just kept stays within the bounds."""
        let_go: list[DiscardedChunks] = []
        limit = self._max_messages or len(self._pending)
        while len(self._pending) > limit or self._held > self._max_bytes:
            uuid, oldest = next(iter(self._pending.items()))
            if len(self._pending) == 1:
                fate = ChunkFate.REFUSE
                count = len(oldest.parts)
                reason = f"{self._held} bytes with the first {count} chunks, {self._limit}"
                _remember(self._refused, uuid, now_ms)
            else:
                fate = self._overflow
                reason = f"{len(self._pending)} incomplete messages of {self._held} bytes"
            let_go.append(self._discard(uuid, fate, reason))
            if fate is ChunkFate.REDELIVER:
                _remember(self._overflowed, uuid, now_ms)
        return tuple(let_go)

    def _gap(self, chunk: Chunk, pending: _Pending | None, now_ms: int) -> ChunkArrival:
        """A chunk is missing before this one; what there is comes again, or has for too long."""
        since = self._gaps.get(chunk.place, now_ms)
        is_overdue = now_ms - since > _GAP_EXPIRIES * self._expire_ms
        if is_overdue and chunk.uuid not in self._overflowed:
            fate = ChunkFate.ACK
            del self._gaps[chunk.place]
        else:
            fate = ChunkFate.REDELIVER
            _remember(self._gaps, chunk.place, since)
        expected = 0
        places: tuple[Place, ...] = (chunk.place,)
        if pending is not None:
            expected = len(pending.parts)
            places = (*self._remove(chunk.uuid).places, chunk.place)
        reason = f"chunk {expected} is missing before {chunk.index}"
        return ChunkArrival(let_go=(DiscardedChunks(chunk.uuid, places, fate, reason),))

    def expire(self, now_ms: int) -> list[DiscardedChunks]:
        """Let go of the messages whose next chunk has not come in time.

        They come again once, perhaps to another consumer that has the rest; then they are acked.
        Time in which the broker had no permits, or no connection, does not count: `postpone`.
        """
        let_go: list[DiscardedChunks] = []
        while self._pending:
            uuid, oldest = next(iter(self._pending.items()))
            if oldest.newest_ms + self._expire_ms > now_ms:
                break
            reason = f"chunk {len(oldest.parts)} of {oldest.count} has not come"
            if self._expired.pop(uuid, None) is None:
                _remember(self._expired, uuid, now_ms)
                fate = ChunkFate.REDELIVER
            else:
                fate = ChunkFate.ACK
            let_go.append(self._discard(uuid, fate, reason))
        return let_go

    def holds(self, uuid: str) -> bool:
        """Whether a part of that message is held."""
        return uuid in self._pending

    def begun(self) -> dict[str, Place]:
        """Where each message begins of which a part is held, by uuid."""
        return {uuid: next(iter(each.places)) for uuid, each in self._pending.items()}

    def next_expiry(self) -> int | None:
        """Monotonic ms at which to call `expire`; None while nothing is held."""
        oldest = next(iter(self._pending.values()), None)
        return None if oldest is None else oldest.newest_ms + self._expire_ms

    def postpone(self, now_ms: int) -> None:
        """Let all wait anew: until now nothing could come."""
        for pending in self._pending.values():
            pending.newest_ms = now_ms

    def clear(self) -> list[Place]:
        """Forget all that is held, which now comes again by itself; gives the entries."""
        places = [place for pending in self._pending.values() for place in pending.places]
        self._pending.clear()
        self._held = 0
        return places

    def _discard(self, uuid: str, fate: ChunkFate, reason: str) -> DiscardedChunks:
        return DiscardedChunks(uuid, tuple(self._remove(uuid).places), fate, reason)

    def _remove(self, uuid: str) -> _Pending:
        pending = self._pending.pop(uuid)
        self._held -= pending.held
        return pending


def _discard_one(chunk: Chunk, fate: ChunkFate, reason: str) -> ChunkArrival:
    return ChunkArrival(let_go=(DiscardedChunks(chunk.uuid, (chunk.place,), fate, reason),))


def _remember(known: OrderedDict[_Key, int], key: _Key, at_ms: int) -> None:
    known[key] = at_ms
    known.move_to_end(key)
    if len(known) > _MAX_REMEMBERED:
        known.popitem(last=False)


def is_chunk(metadata: pb.MessageMetadata) -> bool:
    """Whether an entry is part of a message; a message of one chunk is an ordinary entry."""
    return metadata.num_chunks_from_msg > 1


def cut(payload: Data, most: int) -> Sequence[memoryview]:
    """Cut a compressed payload into chunks of at most `most` bytes; one, though it be empty.

    Raises:
        ConfigurationError: `most` is below 1: the metadata leaves no room in a message.
    """
    if most < 1:
        raise ConfigurationError(
            f"{most} bytes are left for a chunk: the metadata is as large as a message may be"
        )
    view = memoryview(payload)
    return [view[at : at + most] for at in range(0, max(len(view), 1), most)]
