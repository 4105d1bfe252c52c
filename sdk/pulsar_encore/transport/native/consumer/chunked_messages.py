"""Chunked messages of one source: joined, and known by all their entries until they are settled.

Owns `ChunkedMessages`. Above the link a chunked message is its last entry; here an ack or a
redelivery of that is one of all its entries, because a part that comes alone may wedge the subscription
(wire-protocol notes 6.4).
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Final

from ....options import Subscription
from ....timer import now_ms
from ....wire import pulsar_pb2 as pb
from ....wire.chunks import Arrival, Chunk, ChunkAssembler, Fate, Joined, LetGo, Place
from ....wire.entries import text as as_text
from . import entry_contents

# A publisher may send any text. Uuids of thousands of messages are remembered after their chunks
# were let go, so that a longer one is replaced by its digest.
_LONGEST_UUID: Final = 256  # characters

log: Final = logging.getLogger("pulsar_encore.consumer")

_AGAIN_S: Final = 1.0  # before a piece whose message cannot be joined now is asked for again
# An ordered subscription brings all that is unacked with it: that is asked for less and less often,
# until nothing had to be for so long.
_MOST_AGAIN_S: Final = 60.0
_CALM_S: Final = 120.0
# Joined messages whose entries are remembered: more than a broker's unacked window can hold.
_MOST_JOINED: Final = 100_000


def uuid_of(metadata: pb.MessageMetadata) -> str:
    """The uuid of a chunk's message, or its digest if that is much shorter."""
    uuid = as_text(metadata.uuid)
    return uuid if len(uuid) <= _LONGEST_UUID else sha256(uuid.encode()).hexdigest()


class ChunkedMessages:
    """The chunked messages of one source.

    Args:
        subscription: Its limits.
        topic: For log lines.
        loop: Whose timers it uses.
        ack: Acks entries at once.
        redeliver: Asks for entries again; what it cannot ask for now comes by itself.
        starved: Whether nothing can come now, because the broker has no permits.
        max_bytes: Bytes held of all incomplete messages together, and so of one message.
        refuse: Acks the entries of a message that is larger, with the validation error for it.
    """

    def __init__(
        self,
        subscription: Subscription,
        topic: str,
        loop: asyncio.AbstractEventLoop,
        ack: Callable[[list[Place]], None],
        redeliver: Callable[[list[Place]], None],
        starved: Callable[[], bool],
        max_bytes: int,
        refuse: Callable[[list[Place]], None],
    ) -> None:
        self._starved = starved
        self._topic = topic
        self._subscription = subscription.subscription_name
        self._loop = loop
        self._ack = ack
        self._refuse = refuse
        self._redeliver = redeliver
        self._assembler = ChunkAssembler(
            max_messages=subscription.max_pending_chunked_message,
            max_bytes=max_bytes,
            ack_oldest=subscription.auto_ack_oldest_chunked_message_on_queue_full,
        )
        self._remembers = subscription.durable  # nobody acks or asks for what a reader read
        self._joined: OrderedDict[Place, tuple[Place, ...]] = OrderedDict()  # by the last entry
        self._shared = subscription.shared
        self._again_s = _AGAIN_S
        self._again_at = float("-inf")
        self._expiry: asyncio.TimerHandle | None = None
        self._again: dict[Place, None] = {}  # let go, to be asked for
        self._waiting: asyncio.TimerHandle | None = None

    @property
    def pending(self) -> int:
        """Messages of which a part has come."""
        return len(self._assembler)

    def holds(self, uuid: str) -> bool:
        """Whether a part of that message has come."""
        return self._assembler.holds(uuid)

    def begun(self) -> dict[str, Place]:
        """Where each message begins of which a part has come, by uuid."""
        return self._assembler.begun()

    def add(
        self, chunk: entry_contents.Chunk, ledger: int, entry: int, redelivery_count: int
    ) -> Joined | Fate | None:
        """A piece came.

        Returns:
            The whole message, when it was the last one; what becomes of it, when it is not kept.
        """
        metadata = chunk.metadata
        arrival: Arrival = self._assembler.add(
            Chunk(
                uuid=uuid_of(metadata),
                index=metadata.chunk_id,
                count=metadata.num_chunks_from_msg,
                total=metadata.total_chunk_msg_size,
                place=(ledger, entry),
                payload=chunk.payload,
                redelivery_count=redelivery_count,
                sealed=chunk.sealed,
            ),
            now_ms=now_ms(self._loop),
        )
        self._let_go(arrival.let_go)
        self._watch()
        if arrival.joined is not None:
            places = arrival.joined.places
            if self._remembers:
                self._joined[places[-1]] = places
            if len(self._joined) > _MOST_JOINED:
                self._joined.popitem(last=False)
            return arrival.joined
        place = (ledger, entry)
        return next((each.fate for each in arrival.let_go if place in each.places), None)

    def _let_go(self, let_go: Iterable[LetGo]) -> None:
        for each in let_go:
            places = each.places
            if each.fate is Fate.REFUSE:
                self._log_refusal(each)
                self._refuse(list(places))
                continue
            text = "%s: %d entries of a chunked message: %s: %s"
            log.warning(text, self._topic, len(places), each.fate.value, each.reason)
            if each.fate is Fate.ACK:
                self._ack(list(places))
            else:
                self._redeliver_later(places)

    def _log_refusal(self, refused: LetGo) -> None:
        """Log one line for a message that is too large, however many chunks it has."""
        log.log(
            logging.ERROR if refused.is_first else logging.DEBUG,
            "%s: subscription %r: chunked message %d:%d is too large and %s: %s",
            self._topic,
            self._subscription,
            *refused.places[0],
            "acked" if self._remembers else "passed over",
            refused.reason,
        )

    def _redeliver_later(self, places: Iterable[Place]) -> None:
        """Together with what else is let go until then: asked for at two moments, the pieces of a
        message would come apart each time, and be let go each time."""
        if self._shared:  # an ordered one brings all that is unacked
            self._again.update(dict.fromkeys(places))
        if self._waiting is None:
            wait = _AGAIN_S if self._shared else self._ordered_wait()
            self._waiting = self._loop.call_later(wait, self._ask_again)

    def _ask_again(self) -> None:
        places = sorted(self._again)
        self._waiting = None
        self._again.clear()
        self._redeliver(places)

    def _ordered_wait(self) -> float:
        now = self._loop.time()
        calm = now - self._again_at > _CALM_S
        self._again_s = _AGAIN_S if calm else min(_MOST_AGAIN_S, 2 * self._again_s)
        self._again_at = now + self._again_s
        return self._again_s

    def _watch(self) -> None:
        due = self._assembler.next_expiry()
        if due is not None and self._expiry is None:
            wait = max(0.0, (due - now_ms(self._loop)) / 1000)
            self._expiry = self._loop.call_later(wait, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        if self._starved():
            self.postpone()
        self._let_go(self._assembler.expire(now_ms(self._loop)))
        self._watch()

    def postpone(self) -> None:
        """Nothing could come until now: what is incomplete waits anew."""
        self._assembler.postpone(now_ms(self._loop))

    def expand(self, places: list[Place]) -> list[Place]:
        """Entries as they are known above; those of chunked messages with all that belong to them.

        They stay known until the broker has confirmed an ack (`forget`), which may have to be sent
        again; and the same list without any is given back as it is.
        """
        joined = self._joined
        if not joined or joined.keys().isdisjoint(places):
            return places
        return [piece for each in places for piece in joined.get(each, (each,))]

    def forget(self, places: Iterable[Place]) -> None:
        """They are acked, and the broker has said so."""
        for each in places:
            self._joined.pop(each, None)

    def forget_up_to(self, place: Place) -> None:
        """A cumulative ack, which needs no more than its last entry."""
        joined = self._joined
        while joined and next(iter(joined)) <= place:  # nearly in order; a straggler is no harm
            joined.popitem(last=False)

    def clear(self) -> None:
        """The connection is lost, or the place another: all that is incomplete comes again."""
        self._assembler.clear()
        self._again.clear()
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
