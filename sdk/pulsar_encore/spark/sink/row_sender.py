"""Publishing the rows of a Spark task in order, with a bounded number in flight.

The receipts of the rows in flight form a queue in the order of the rows. When it is full, the
sender awaits the oldest. This costs 0.3 us of CPU per row; an asyncio task per row, as in
`BoundedCopy`, would cost 5 us. Numbered rows also need the queue: no row may be published after the
failure of an earlier row is known.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from copy import copy
from typing import Final, TypeAlias

from ...client import Client
from ...consumer.forwarding.copy_options import Destination
from ...errors import EncoreError, TransportTimeout
from ...transport.interface import TransportProducer
from ...values.message_id import MessageId
from ...values.outgoing_message import MessageTransaction, OutgoingMessage
from ..option_table import PRODUCE
from .producer_cache import ProducerKind, producers_of
from .row_batches import RowChunk
from .sequence_ids import SequenceIds
from .sink_options import SinkOptions

_Row: TypeAlias = tuple[asyncio.Future[MessageId], TransportProducer, OutgoingMessage]
"""The receipt of a row in flight, its producer, and its message."""

_SLICE_ROWS: Final = 1000  # rows published before the sockets get a pass of the event loop
_MARK_TIMEOUT_S: Final = 10.0
_GRACE_S: Final = 5.0  # added to the send timeout, which the producers enforce

log: Final = logging.getLogger("pulsar_encore.spark")


class RowSender:
    """Publishes the rows of one task, on the client's event loop. `topics` counts rows by topic.

    Args:
        txn: The transaction of the rows, or None.
    """

    def __init__(
        self, client: Client, options: SinkOptions, txn: MessageTransaction | None = None
    ) -> None:
        self._txn = txn
        self._producers = producers_of(client)
        self._kind = ProducerKind(options.publishing, options.mode != PRODUCE, options.value_schema)
        self._numbering: SequenceIds | None = None
        self._max_in_flight = options.publishing.max_pending
        self._timeout_s = options.publishing.send_timeout_ms / 1000
        self._open_producers: dict[Destination, TransportProducer] = {}
        self._in_flight: deque[_Row] = deque()
        # Of numbered rows: producers of failed rows, and the last row that each producer stored.
        self._failed: set[TransportProducer] = set()
        self._last_stored: dict[TransportProducer, OutgoingMessage] = {}
        self._rows = 0
        self._published = 0  # rows handed to producers
        self.topics: Counter[str] = Counter()

    def number(self, numbering: SequenceIds) -> None:
        self._numbering = numbering

    async def publish(self, chunk: RowChunk) -> None:
        """Publish messages without waiting for their receipts, as soon as the limit allows.

        After an error, of this or an earlier message, call `abort`.
        """
        messages, destinations = chunk.messages, chunk.destinations
        if self._numbering is not None:
            ids = self._numbering.ids(self._rows, len(messages))
            for message, sequence_id in zip(messages, ids, strict=True):
                message.sequence_id = sequence_id
        if self._txn is not None:
            for message in messages:
                message.txn = self._txn
        self._rows += len(messages)
        if isinstance(destinations, Destination):
            producers = [await self._producer(destinations)] * len(messages)
            self.topics[destinations.topic] += len(messages)
        else:
            by_destination: dict[Destination, TransportProducer] = {}
            for destination, count in Counter(destinations).items():
                by_destination[destination] = await self._producer(destination)
                self.topics[destination.topic] += count
            producers = [by_destination[destination] for destination in destinations]
        # Slices of half the limit keep the producers busy while the next slice is published.
        in_flight, step = self._in_flight, max(1, min(_SLICE_ROWS, self._max_in_flight // 2))
        for start in range(0, len(messages), step):
            end = min(start + step, len(messages))
            await self._wait_for_capacity(end - start)
            for producer, message in zip(producers[start:end], messages[start:end], strict=True):
                in_flight.append(
                    (asyncio.ensure_future(producer.publish(message)), producer, message)
                )
                self._published += 1
            await asyncio.sleep(0)

    async def finish(self) -> None:
        """Wait until all rows are stored. After an error, call `abort`."""
        producers = list(self._open_producers.values())
        timeout_s = self._timeout_s + _GRACE_S
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(each.flush() for each in producers))
        except TimeoutError as error:
            raise self._timeout_error() from error
        while self._in_flight:
            await self._wait(self._in_flight[-1][0])
            self._remove_finished()
        if self._numbering is None:
            self._producers.give_back(self._open_producers, self._kind)
        else:
            await self._producers.close(producers)
        self._open_producers.clear()

    async def abort(self) -> None:
        """Discard the rows in flight of a failed task, and their errors."""
        if self._numbering is not None:
            await self._mark(self._numbering)
        for receipt, _, _ in self._in_flight:
            receipt.add_done_callback(_retrieve_error)
        self._in_flight.clear()
        producers, self._open_producers = self._open_producers, {}
        if self._numbering is None:
            await self._producers.drop(producers, self._kind)
        else:
            await self._producers.close(producers.values())

    async def _mark(self, numbering: SequenceIds) -> None:
        """Record for the next attempt that a row failed although later rows may be stored.

        The numbers of the later rows would hide the failed row. A stored row is therefore published
        again under the number that stands for a failed attempt.
        """
        self._failed |= {
            producer for receipt, producer, _ in self._in_flight if _has_failed(receipt)
        }
        if not self._failed:
            return
        try:
            async with asyncio.timeout(_MARK_TIMEOUT_S):
                await asyncio.gather(*(producer.flush() for producer in self._failed))
                if self._in_flight:
                    await asyncio.wait([receipt for receipt, _, _ in self._in_flight])
                for receipt, producer, message in self._in_flight:
                    if not _has_failed(receipt):
                        self._last_stored[producer] = message
                for producer in self._failed:
                    if producer in self._last_stored:
                        await self._mark_one(producer, self._last_stored[producer], numbering.mark)
        except (EncoreError, TimeoutError) as error:
            log.warning(
                "a row failed, and it could not be recorded that later rows are stored; if another "
                "attempt sends the row, the broker may drop it as a duplicate: %s",
                error,
            )

    async def _mark_one(
        self, producer: TransportProducer, message: OutgoingMessage, number: int
    ) -> None:
        marked = copy(message)
        marked.sequence_id = number
        stored = asyncio.ensure_future(producer.publish(marked))
        await producer.flush()
        await stored

    async def _producer(self, destination: Destination) -> TransportProducer:
        producer = self._open_producers.get(destination)
        if producer is None:
            if self._numbering is None:
                producer = await self._producers.take(destination, self._kind)
            else:
                producer = await self._producers.make_numbered(
                    destination, self._kind, self._numbering
                )
            self._open_producers[destination] = producer
        return producer

    async def _wait_for_capacity(self, needed: int) -> None:
        in_flight = self._in_flight
        self._remove_finished()
        while in_flight and len(in_flight) + needed > self._max_in_flight:
            await self._wait(in_flight[min(needed, len(in_flight)) - 1][0])
            self._remove_finished()
        if self._numbering is not None:
            # The number of a later row would hide a failed row from the next attempt. Rows of
            # other topics may fail out of order.
            for row, (receipt, _, _) in enumerate(in_flight, self._published - len(in_flight)):
                if receipt.done():
                    self._raise_if_failed(receipt, row)

    def _remove_finished(self) -> None:
        in_flight = self._in_flight
        while in_flight and in_flight[0][0].done():
            row = self._published - len(in_flight)
            receipt, producer, message = in_flight.popleft()
            if self._numbering is not None:
                if _has_failed(receipt):
                    self._failed.add(producer)
                else:
                    self._last_stored[producer] = message
            self._raise_if_failed(receipt, row)

    def _raise_if_failed(self, done: asyncio.Future[MessageId], row: int) -> None:
        """Raise the error of a row that was not stored, with its index in the task."""
        try:
            done.result()
        except EncoreError as error:
            error.args = (f"row {row} of the task: {error}", *error.args[1:])
            raise

    async def _wait(self, receipt: asyncio.Future[MessageId]) -> None:
        done, _ = await asyncio.wait((receipt,), timeout=self._timeout_s + _GRACE_S)
        if not done:
            raise self._timeout_error()

    def _timeout_error(self) -> TransportTimeout:
        return TransportTimeout(
            f"{len(self._in_flight)} rows were not stored in {self._timeout_s:g} s (sendTimeoutMs)"
        )


def _has_failed(receipt: asyncio.Future[MessageId]) -> bool:
    return receipt.done() and (receipt.cancelled() or receipt.exception() is not None)


def _retrieve_error(done: asyncio.Future[MessageId]) -> None:
    """Retrieve the error, or asyncio would log it."""
    if not done.cancelled():
        done.exception()
