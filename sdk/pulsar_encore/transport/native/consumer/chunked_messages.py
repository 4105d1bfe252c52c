"""Chunked messages of one topic: their chunks until they are complete, then all their entries.

Above the transport a chunked message is its last entry. Acks and redelivery requests for that entry
are extended to all its entries, because a chunk that is redelivered alone may block the
subscription (`docs/notes/wire-protocol.md#chunked-messages`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Final

from ....eventloop.alarm import now_ms
from ....options import Subscription
from ....wire import pulsar_pb2 as pb
from ....wire.chunk_assembler import (
    Chunk,
    ChunkArrival,
    ChunkAssembler,
    ChunkFate,
    DiscardedChunks,
    JoinedMessage,
    Place,
)
from ....wire.entries import text as as_text
from . import entry_contents

# Characters. A publisher may choose any text, and thousands of uuids are remembered.
_LONGEST_UUID: Final = 256


_RETRY_S: Final = 1.0  # before chunks that cannot be joined now are requested again
# An ordered subscription redelivers everything unacked together with those chunks. The wait doubles
# until two minutes pass without such a request.
_LONGEST_RETRY_S: Final = 60.0
_CALM_S: Final = 120.0
# Complete messages that are remembered: more than a broker's unacked window can hold.
_MOST_JOINED: Final = 100_000


def uuid_of(metadata: pb.MessageMetadata) -> str:
    """Return the uuid of a chunk's message, or a digest of a very long uuid."""
    uuid = as_text(metadata.uuid)
    return uuid if len(uuid) <= _LONGEST_UUID else sha256(uuid.encode()).hexdigest()


class ChunkedMessages:
    """The chunked messages of one topic.

    Args:
        redeliver: Requests entries again, unless no broker holds the consumer.
        starved: Returns True if the broker has no permits, so that no chunk can arrive.
        max_bytes: Most bytes of all incomplete messages together, and so of one message.
        refuse: Acks the entries of a larger message, with a validation error.
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
        log: logging.Logger,
    ) -> None:
        self._log = log
        self._starved = starved
        self._topic = topic
        self._subscription = subscription.subscription_name
        self._loop = loop
        self._ack = ack
        self._refuse = refuse
        self._redeliver = redeliver
        self.assembler: ChunkAssembler = ChunkAssembler(
            max_messages=subscription.max_pending_chunked_message,
            max_bytes=max_bytes,
            ack_oldest=subscription.auto_ack_oldest_chunked_message_on_queue_full,
        )
        self._remembers = subscription.durable  # a reader neither acks nor requests entries
        self._joined: OrderedDict[Place, tuple[Place, ...]] = OrderedDict()  # by last entry
        self._shared = subscription.shared
        self._retry_s = _RETRY_S
        self._retry_at = float("-inf")
        self._expiry: asyncio.TimerHandle | None = None
        self._dropped: dict[Place, None] = {}  # chunks to request again
        self._waiting: asyncio.TimerHandle | None = None

    def add(
        self, chunk: entry_contents.ChunkEntry, ledger: int, entry: int, redelivery_count: int
    ) -> JoinedMessage | ChunkFate | None:
        """Add a chunk that arrived.

        Returns:
            The message, if the chunk completes it; the fate of the chunk, if it is not kept.
        """
        metadata = chunk.metadata
        arrival: ChunkArrival = self.assembler.add(
            Chunk(
                uuid=uuid_of(metadata),
                index=metadata.chunk_id,
                count=metadata.num_chunks_from_msg,
                total=metadata.total_chunk_msg_size,
                place=(ledger, entry),
                payload=chunk.payload,
                redelivery_count=redelivery_count,
                encrypted=chunk.sealed,
            ),
            now_ms=now_ms(self._loop),
        )
        self._report_discarded(arrival.discarded)
        self._watch()
        if arrival.joined is not None:
            places = arrival.joined.places
            if self._remembers:
                self._joined[places[-1]] = places
            if len(self._joined) > _MOST_JOINED:
                self._joined.popitem(last=False)
            return arrival.joined
        place = (ledger, entry)
        return next((each.fate for each in arrival.discarded if place in each.places), None)

    def _report_discarded(self, discarded: Iterable[DiscardedChunks]) -> None:
        for each in discarded:
            places = each.places
            if each.fate is ChunkFate.REFUSE:
                self._log_refusal(each)
                self._refuse(list(places))
                continue
            text = "%s: %d entries of a chunked message: %s: %s"
            self._log.warning(text, self._topic, len(places), each.fate.value, each.reason)
            if each.fate is ChunkFate.ACK:
                self._ack(list(places))
            else:
                self._redeliver_later(places)

    def _log_refusal(self, refused: DiscardedChunks) -> None:
        """Log one error, however many chunks the message has."""
        self._log.log(
            logging.ERROR if refused.is_first else logging.DEBUG,
            "%s: subscription %r: chunked message %d:%d is too large and %s: %s",
            self._topic,
            self._subscription,
            *refused.places[0],
            "acked" if self._remembers else "passed over",
            refused.reason,
        )

    def _redeliver_later(self, places: Iterable[Place]) -> None:
        """Request dropped chunks again after a delay, all in one request.

        With two requests, the chunks of a message would arrive apart and be dropped each time.
        """
        if self._shared:  # an ordered subscription redelivers everything, without ids
            self._dropped.update(dict.fromkeys(places))
        if self._waiting is None:
            wait = _RETRY_S if self._shared else self._ordered_wait()
            self._waiting = self._loop.call_later(wait, self._request_dropped)

    def _request_dropped(self) -> None:
        places = sorted(self._dropped)
        self._waiting = None
        self._dropped.clear()
        self._redeliver(places)

    def _ordered_wait(self) -> float:
        now = self._loop.time()
        is_calm = now - self._retry_at > _CALM_S
        self._retry_s = _RETRY_S if is_calm else min(_LONGEST_RETRY_S, 2 * self._retry_s)
        self._retry_at = now + self._retry_s
        return self._retry_s

    def _watch(self) -> None:
        due = self.assembler.next_expiry()
        if due is not None and self._expiry is None:
            wait = max(0.0, (due - now_ms(self._loop)) / 1000)
            self._expiry = self._loop.call_later(wait, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        if self._starved():
            self.postpone()
        self._report_discarded(self.assembler.expire(now_ms(self._loop)))
        self._watch()

    def postpone(self) -> None:
        """Restart the expiry of incomplete messages, because no chunk could arrive."""
        self.assembler.postpone(now_ms(self._loop))

    def expand(self, places: list[Place]) -> list[Place]:
        """Replace the last entry of each chunked message by all its entries.

        The entries are remembered until the broker has confirmed their ack, because the ack may
        have to be sent again. Without a chunked message, return `places` itself.
        """
        joined = self._joined
        if not joined or joined.keys().isdisjoint(places):
            return places
        return [entry for each in places for entry in joined.get(each, (each,))]

    def forget(self, places: Iterable[Place]) -> None:
        """Forget chunked messages, because the broker has confirmed their acks."""
        for each in places:
            self._joined.pop(each, None)

    def forget_up_to(self, place: Place) -> None:
        """Forget chunked messages that a cumulative ack covers."""
        joined = self._joined
        # Messages are joined nearly in order. One that is not at the front stays, without harm.
        while joined and next(iter(joined)) <= place:
            joined.popitem(last=False)

    def clear(self) -> None:
        """Drop all incomplete messages."""
        self.assembler.clear()
        self._dropped.clear()
        for timer in (self._waiting, self._expiry):
            if timer is not None:
                timer.cancel()
        self._waiting = self._expiry = None
