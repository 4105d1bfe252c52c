"""Joins the chunks of large messages, and gives messages up whose chunks are missing or too old.

The chunks of one message arrive in order; chunks of several messages may be mixed. Every chunk is
either held here or returned exactly once, in a joined message or as discarded. The held chunks are
bounded by number of messages, bytes and age. A chunk is acked because of its age only after it was
redelivered once, because brokers skip entries if a rewind comes during a read
(`docs/notes/wire-protocol.md#rewind-during-a-read`).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from ..errors import ConfigurationError

if TYPE_CHECKING:
    from . import pulsar_pb2 as pb
    from .checksum import Data

Place: TypeAlias = tuple[int, int]
"""Ledger id and entry id."""

_Key = TypeVar("_Key", Place, str)

_BOOKKEEPING: Final = 300  # bytes per chunk beside its payload, so that tiny chunks are bounded
_MAX_REMEMBERED: Final = 10_000  # of each kind of message or entry that was given back
# In expiry times. Another consumer that holds the missing chunk gives it back when its own part has
# been incomplete for one expiry time, and may have to do so twice.
_GAP_EXPIRIES: Final = 3


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk that has arrived.

    Attributes:
        uuid: The same for all chunks of a message.
        total: Bytes of all chunks together; 0 if the producer did not say.
        payload: Decrypted, not decompressed.
        encrypted: True if the chunk could not be decrypted. It is then larger than `total` implies.
    """

    uuid: str
    index: int
    count: int
    total: int
    place: Place
    payload: Data
    redelivery_count: int = 0
    encrypted: bool = False


class ChunkFate(Enum):
    ACK = "ack"
    """Ack them, because they will never be part of a message."""

    REDELIVER = "redeliver"
    """Request all of them together, after a delay. Without the delay they would be redelivered in
    an endless loop."""

    REFUSE = "refuse"
    """The message is larger than the client accepts. Ack the entries with the validation error
    UncompressedSizeCorruption, because a redelivery would bring the same bytes."""


class DiscardedChunks(NamedTuple):
    """Entries of one message that are no longer kept, in the order of their arrival.

    `is_first` is False for a later chunk of a message that was refused before.
    """

    uuid: str
    places: tuple[Place, ...]
    fate: ChunkFate
    reason: str
    is_first: bool = True


class JoinedMessage(NamedTuple):
    """A complete message, not decompressed.

    Attributes:
        places: The entry of each chunk. The message is acked, nacked and sought by all of them.
        redelivery_count: The lowest of its chunks, because chunks are also redelivered when another
            chunk is missing.
        encrypted: True if a chunk could not be decrypted.
    """

    payload: bytes
    places: tuple[Place, ...]
    redelivery_count: int = 0
    encrypted: bool = False


class ChunkArrival(NamedTuple):
    """The result of adding one chunk.

    `permits` are to be given back: 1, but 0 for the last chunk, because its permit counts for the
    message.
    """

    joined: JoinedMessage | None = None
    permits: int = 1
    discarded: tuple[DiscardedChunks, ...] = ()


KEPT = ChunkArrival()
"""The chunk is kept for its message, or is a copy of a kept chunk."""


@dataclass(slots=True)
class _Pending:
    count: int
    total: int
    newest_ms: int
    parts: list[bytes] = field(default_factory=list)
    places: dict[Place, None] = field(default_factory=dict)
    size: int = 0
    redelivery_count: int = 0
    encrypted: bool = False

    @property
    def held(self) -> int:
        return self.size + _BOOKKEEPING * len(self.parts)


class ChunkAssembler:
    """Joins the chunks that one consumer receives from one topic or partition.

    Call `clear` when the connection is lost, because every unacked chunk is redelivered then.

    Args:
        max_messages: Most incomplete messages, 0 for no limit (`max_pending_chunked_message`).
            Beyond it, the message whose newest chunk is the oldest is discarded.
        max_bytes: Most bytes of all messages together. A larger message is refused
            (`max_uncompressed_size`).
        expire_ms: How long an incomplete message waits for its next chunk.
        ack_oldest: True to ack, and so lose, a message that is discarded because of a limit; else
            it is redelivered (`auto_ack_oldest_chunked_message_on_queue_full`).
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
        # Ordered by the newest chunk of each, oldest first.
        self._pending: OrderedDict[str, _Pending] = OrderedDict()
        self._held = 0
        # Chunks that came after a missing one, and when the gap was first seen. Then the messages
        # that were given back because of a limit, and because their next chunk did not arrive.
        self._gaps: OrderedDict[Place, int] = OrderedDict()
        self._overflowed: OrderedDict[str, int] = OrderedDict()
        self._expired: OrderedDict[str, int] = OrderedDict()
        # Messages that are too large. Their later chunks have the same fate as the first ones.
        self._refused: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def held(self) -> int:
        return self._held

    def add(self, chunk: Chunk, *, now_ms: int) -> ChunkArrival:
        """Add a chunk at a monotonic time in ms."""
        uuid = chunk.uuid
        pending = self._pending.get(uuid)
        if pending is not None and chunk.place in pending.places:
            return KEPT
        if not 0 <= chunk.index < chunk.count or chunk.total < 0:
            reason = f"chunk {chunk.index} of {chunk.count}, {chunk.total} bytes"
            return _discarded(uuid, (chunk.place,), ChunkFate.ACK, reason)
        if chunk.total > self._max_bytes or uuid in self._refused:
            return self._refuse(chunk, now_ms)
        if pending is None:
            if chunk.index:
                return self._gap(chunk, None, now_ms)
        elif chunk.index == 0:
            # The producer wrote the message again from the start.
            restarted = self._discard(uuid, ChunkFate.ACK, "started again by the producer")
            arrival = self._keep(chunk, _Pending(chunk.count, chunk.total, now_ms), now_ms)
            return arrival._replace(discarded=(restarted, *arrival.discarded))
        elif chunk.index < len(pending.parts):
            return _discarded(uuid, (chunk.place,), ChunkFate.ACK, f"a copy of chunk {chunk.index}")
        elif chunk.index > len(pending.parts):
            return self._gap(chunk, pending, now_ms)
        elif (chunk.count, chunk.total) != (pending.count, pending.total):
            kept = self._discard(
                uuid, ChunkFate.ACK, "its chunks differ in their count or total size"
            )
            return ChunkArrival(discarded=(kept._replace(places=(*kept.places, chunk.place)),))
        return self._keep(chunk, pending or _Pending(chunk.count, chunk.total, now_ms), now_ms)

    def _refuse(self, chunk: Chunk, now_ms: int) -> ChunkArrival:
        uuid = chunk.uuid
        held = tuple(self._remove(uuid).places) if uuid in self._pending else ()
        is_first = chunk.index == 0 or uuid not in self._refused
        _remember(self._refused, uuid, now_ms)
        reason = f"its chunks announce {chunk.total} bytes, {self._limit}"
        return _discarded(uuid, (*held, chunk.place), ChunkFate.REFUSE, reason, is_first)

    @property
    def _limit(self) -> str:
        return f"the limit is {self._max_bytes} bytes (max_uncompressed_size)"

    def _keep(self, chunk: Chunk, pending: _Pending, now_ms: int) -> ChunkArrival:
        uuid = chunk.uuid
        self._held -= pending.held
        pending.parts.append(bytes(chunk.payload))  # a view would keep the whole read in memory
        pending.places[chunk.place] = None
        pending.size += len(chunk.payload)
        pending.newest_ms = now_ms
        pending.encrypted = pending.encrypted or chunk.encrypted
        least = chunk.redelivery_count if chunk.index == 0 else pending.redelivery_count
        pending.redelivery_count = min(least, chunk.redelivery_count)
        self._held += pending.held
        self._pending[uuid] = pending
        self._pending.move_to_end(uuid)
        self._overflowed.pop(uuid, None)
        complete = len(pending.parts) == pending.count
        if (pending.total and not pending.encrypted) and (
            pending.size != pending.total if complete else pending.size > pending.total
        ):
            reason = f"{pending.size} bytes, its chunks announce {pending.total}"
            return ChunkArrival(discarded=(self._discard(uuid, ChunkFate.ACK, reason),))
        if complete:
            self._remove(uuid)
            self._expired.pop(uuid, None)
            joined = JoinedMessage(
                b"".join(pending.parts),
                tuple(pending.places),
                pending.redelivery_count,
                pending.encrypted,
            )
            return ChunkArrival(joined, 0)
        return ChunkArrival(discarded=self._discard_overflow(now_ms))

    def _discard_overflow(self, now_ms: int) -> tuple[DiscardedChunks, ...]:
        discarded: list[DiscardedChunks] = []
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
            discarded.append(self._discard(uuid, fate, reason))
            if fate is ChunkFate.REDELIVER:
                _remember(self._overflowed, uuid, now_ms)
        return tuple(discarded)

    def _gap(self, chunk: Chunk, pending: _Pending | None, now_ms: int) -> ChunkArrival:
        """Have the message redelivered, because a chunk before this one is missing.

        If it has been missing for too long, ack this chunk instead.
        """
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
        return _discarded(chunk.uuid, places, fate, reason)

    def expire(self, now_ms: int) -> list[DiscardedChunks]:
        """Discard the messages whose next chunk did not arrive in time.

        A message is redelivered once, perhaps to another consumer that has the rest of it. The
        second time it is acked. Time in which the broker had no permits, or no connection, does not
        count: see `postpone`.
        """
        discarded: list[DiscardedChunks] = []
        while self._pending:
            uuid, oldest = next(iter(self._pending.items()))
            if oldest.newest_ms + self._expire_ms > now_ms:
                break
            reason = f"chunk {len(oldest.parts)} of {oldest.count} did not arrive in time"
            if self._expired.pop(uuid, None) is None:
                _remember(self._expired, uuid, now_ms)
                fate = ChunkFate.REDELIVER
            else:
                fate = ChunkFate.ACK
            discarded.append(self._discard(uuid, fate, reason))
        return discarded

    def holds(self, uuid: str) -> bool:
        return uuid in self._pending

    def begun(self) -> dict[str, Place]:
        """Return the first chunk's entry of each incomplete message, by uuid."""
        return {uuid: next(iter(each.places)) for uuid, each in self._pending.items()}

    def next_expiry(self) -> int | None:
        """Return the monotonic time in ms at which to call `expire`."""
        oldest = next(iter(self._pending.values()), None)
        return None if oldest is None else oldest.newest_ms + self._expire_ms

    def postpone(self, now_ms: int) -> None:
        """Restart the wait of every message, because no chunk could arrive until now."""
        for pending in self._pending.values():
            pending.newest_ms = now_ms

    def clear(self) -> list[Place]:
        """Forget all held chunks, because the broker redelivers them; return their entries."""
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


def _discarded(
    uuid: str, places: tuple[Place, ...], fate: ChunkFate, reason: str, is_first: bool = True
) -> ChunkArrival:
    return ChunkArrival(discarded=(DiscardedChunks(uuid, places, fate, reason, is_first),))


def _remember(known: OrderedDict[_Key, int], key: _Key, at_ms: int) -> None:
    known[key] = at_ms
    known.move_to_end(key)
    if len(known) > _MAX_REMEMBERED:
        known.popitem(last=False)


def is_chunk(metadata: pb.MessageMetadata) -> bool:
    """Return True if an entry is one of several chunks of a message."""
    return metadata.num_chunks_from_msg > 1
