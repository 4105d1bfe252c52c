"""Publishing the rows of a task: in order, so many under way, and to its end or not at all.

How it works. A task hands over whole chunks, so nothing is scheduled for a row but its publishing.
The futures stand in one line, in the order they were handed to the producers, and the first of
them is awaited when there is no more room: that bounds what is under way, and finds who failed.

Owns `RowSender`, of one task; it runs on the event loop of the client. Invariant: what was handed
over before `finish` returned is stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from copy import copy
from typing import Final

from ...client import Client
from ...errors import EncoreError, TransportTimeout
from ...transport.interface import TransportProducer
from ...values.message_id import MessageId
from ...values.outgoing_message import OutgoingMessage
from .letter_copies import Destination
from .producer_cache import kind_of, producers_of
from .row_batches import RowChunk
from .sequence_ids import SequenceIds
from .sink_options import SinkOptions

_SLICE: Final = 1000  # published at once; then the sockets have their turn
_MARK_S: Final = 10.0
_GRACE_S: Final = 5.0  # over the send timeout, which the producers keep themselves

log: Final = logging.getLogger("pulsar_encore.spark")


class RowSender:
    """The rows of one task.

    Args:
        client: Open; its producers are shared.
        options: Of the write.

    Attributes:
        topics: Rows handed over, by full name of their topic.
    """

    def __init__(self, client: Client, options: SinkOptions) -> None:
        self._producers = producers_of(client)
        self._kind = kind_of(options)
        self._numbering: SequenceIds | None = None
        self._most = options.publishing.max_pending
        self._timeout_s = options.publishing.send_timeout_ms / 1000
        self._links: dict[Destination, TransportProducer] = {}
        self._line: deque[asyncio.Future[MessageId]] = deque()
        # With numbers, beside the line: by which producer, and what.
        self._beside: deque[tuple[TransportProducer, OutgoingMessage]] = deque()
        self._failed: set[TransportProducer] = set()
        self._last_stored: dict[TransportProducer, OutgoingMessage] = {}
        self._rows = 0
        self._handed = 0  # to producers
        self.topics: Counter[str] = Counter()

    def number(self, numbering: SequenceIds) -> None:
        """Brokers are to know the rows again. Before the first of them."""
        self._numbering = numbering

    async def publish(self, chunk: RowChunk) -> None:
        """Hand messages over; waits for room, and not for their receipts.

        Raises:
            TransportError: Of these or of earlier ones, one could not be stored; then `abort`.
            ConfigurationError: One cannot be sent; likewise.
        """
        messages, ways = chunk.messages, chunk.ways
        if self._numbering is not None:
            ids = self._numbering.ids(self._rows, len(messages))
            for message, sequence_id in zip(messages, ids, strict=True):
                message.sequence_id = sequence_id
        self._rows += len(messages)
        if isinstance(ways, Destination):
            links = [await self._link(ways)] * len(messages)
            self.topics[ways.topic] += len(messages)
        else:
            of_way: dict[Destination, TransportProducer] = {}
            for way, count in Counter(ways).items():
                of_way[way] = await self._link(way)
                self.topics[way.topic] += count
            links = [of_way[way] for way in ways]
        # With half of the room at once, producers have work while the next half is handed over.
        line, step = self._line, max(1, min(_SLICE, self._most // 2))
        for start in range(0, len(messages), step):
            end = min(start + step, len(messages))
            await self._room(end - start)
            pairs = list(zip(links[start:end], messages[start:end], strict=True))
            if self._numbering is not None:
                self._beside += pairs
            for link, message in pairs:
                line.append(asyncio.ensure_future(link.publish(message)))
                self._handed += 1
            await asyncio.sleep(0)

    async def finish(self) -> None:
        """Wait until all of it is stored.

        Raises:
            TransportError: Something could not be stored; then `abort`.
        """
        links = list(self._links.values())
        bound_s = self._timeout_s + _GRACE_S
        try:
            async with asyncio.timeout(bound_s):
                await asyncio.gather(*(each.flush() for each in links))
        except TimeoutError as error:
            raise self._late() from error
        while self._line:
            await self._wait(self._line[-1])
            self._reap()
        if self._numbering is None:
            self._producers.give_back(self._links, self._kind)
        else:
            await self._producers.close(links)
        self._links.clear()

    async def abort(self) -> None:
        """The task failed: what is under way is given up, and whatever becomes of it is no news."""
        if self._numbering is not None:
            await self._mark(self._numbering)
        for each in self._line:
            each.add_done_callback(_heard)
        self._line.clear()
        links, self._links = self._links, {}
        if self._numbering is None:
            await self._producers.drop(links, self._kind)
        else:
            await self._producers.close(links.values())

    async def _mark(self, numbering: SequenceIds) -> None:
        """Where a row failed and some behind it may be stored, their numbers would hide it from the
        next attempt: one of them is stored once more, by the number that says so."""
        for each, (link, _) in zip(self._line, self._beside, strict=True):
            if _has_failed(each):
                self._failed.add(link)
        if not self._failed:
            return
        try:
            async with asyncio.timeout(_MARK_S):
                await asyncio.gather(*(link.flush() for link in self._failed))
                if self._line:
                    await asyncio.wait(self._line)
                for each, (link, message) in zip(self._line, self._beside, strict=True):
                    if not _has_failed(each):
                        self._last_stored[link] = message
                for link in self._failed:
                    if link in self._last_stored:
                        await self._mark_one(link, self._last_stored[link], numbering.mark)
        except (EncoreError, TimeoutError) as error:
            log.warning(
                "a row failed, and that some behind it are stored could not be marked; should it "
                "be stored in another attempt, it may be dropped as a double: %s",
                error,
            )

    async def _mark_one(
        self, link: TransportProducer, message: OutgoingMessage, number: int
    ) -> None:
        marked = copy(message)
        marked.sequence_id = number
        stored = asyncio.ensure_future(link.publish(marked))
        await link.flush()
        await stored

    async def _link(self, way: Destination) -> TransportProducer:
        link = self._links.get(way)
        if link is None:
            if self._numbering is None:
                link = await self._producers.take(way, self._kind)
            else:
                link = await self._producers.make_numbered(way, self._kind, self._numbering)
            self._links[way] = link
        return link

    async def _room(self, needed: int) -> None:
        """Wait until so many more may be under way."""
        line = self._line
        self._reap()
        while line and len(line) + needed > self._most:
            await self._wait(line[min(needed, len(line)) - 1])
            self._reap()
        if self._numbering is not None:
            # A row may not be stored after one before it failed: its number would hide that one
            # from the next attempt. Those of other topics may fail first.
            for row, each in enumerate(line, self._handed - len(line)):
                if each.done():
                    self._stored(each, row)

    def _reap(self) -> None:
        """Take what is done from the head of the line."""
        line = self._line
        while line and line[0].done():
            row = self._handed - len(line)
            one = line.popleft()
            if self._numbering is not None:
                link, message = self._beside.popleft()
                if _has_failed(one):
                    self._failed.add(link)
                else:
                    self._last_stored[link] = message
            self._stored(one, row)

    def _stored(self, done: asyncio.Future[MessageId], row: int) -> None:
        """It is; or the error says of which row it is, by its number in the task."""
        try:
            done.result()
        except EncoreError as error:
            error.args = (f"row {row} of the task: {error}", *error.args[1:])
            raise

    async def _wait(self, one: asyncio.Future[MessageId]) -> None:
        """Until it is done; the producers fail what takes longer than the send timeout."""
        done, _ = await asyncio.wait((one,), timeout=self._timeout_s + _GRACE_S)
        if not done:
            raise self._late()

    def _late(self) -> TransportTimeout:
        return TransportTimeout(
            f"{len(self._line)} rows were not stored in {self._timeout_s:g} s (sendTimeoutMs)"
        )


def _has_failed(one: asyncio.Future[MessageId]) -> bool:
    return one.done() and (one.cancelled() or one.exception() is not None)


def _heard(done: asyncio.Future[MessageId]) -> None:
    """Its error has been seen, for asyncio, which else would complain that nobody asked."""
    if not done.cancelled():
        done.exception()
