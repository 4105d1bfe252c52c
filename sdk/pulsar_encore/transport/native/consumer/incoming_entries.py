"""Entries of one topic, from a MESSAGE command to a delivery.

Plain entries take a short path: `on_run` for many at once and the first branch of `on_entry` for
one. All others go through `_open`. Deliveries are collected until the session calls
`on_entries_end`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from ....wire.entries import EntryError
from ...interface import AckPlan, Delivery, PlainDeliveries
from ..connection.codec_thread import Codecs
from ..connection.fast_path import MessageTemplate
from .ack_writer import AckWriter
from .broker_consumer import BrokerConsumer
from .chunk_handler import ChunkHandler
from .chunked_messages import ChunkedMessages
from .decompression_queue import DecompressionQueue, QueuedEntry, QueueOutput
from .entry_contents import (
    BatchEntry,
    ChunkEntry,
    CompressedEntry,
    EntryContent,
    Marker,
    UndecryptableEntry,
    messages_charged,
)
from .entry_reader import EntryReader
from .memory_budget import MemoryBudget
from .message_views import PlainMessage, PlainMessages, SealedMessage
from .permits import Permits
from .read_position import ReadPosition
from .skipped_entries import SkippedEntries
from .topic_events import TopicEvents

_ONLY: Final = (0,)


class IncomingEntries:
    """Reads the entries of one topic and passes them on.

    Args:
        position: None for a durable subscription.

    Attributes:
        epoch: The consumer epoch. Each rewind begins a new one; entries of earlier epochs are
            dropped, because the broker sends them again.
        arrived_s: Loop time at which the last entries arrived, or at which the consumer attached.
    """

    def __init__(
        self,
        number: int,
        broker: BrokerConsumer,
        permits: Permits,
        position: ReadPosition | None,
        reader: EntryReader,
        budget: MemoryBudget,
        codecs: Codecs,
        chunked: ChunkedMessages,
        acks: AckWriter,
        skipped: SkippedEntries,
        listener: TopicEvents,
        reattach: Callable[[], None],
        flow: Callable[[], None],
        log: logging.Logger,
    ) -> None:
        self._log = log
        self.epoch: int = 0
        self.arrived_s: float = 0.0
        self._number = number
        self._broker = broker
        self._permits = permits
        self._position = position
        self._reader = reader
        self.queue: DecompressionQueue = DecompressionQueue(
            budget,
            codecs,
            broker.loop,
            reader.unpack,
            self._on_left_queue,
            self._delivered_so_far,
            self._after_queue,
        )
        self._chunked = chunked
        self._acks = acks
        self._skipped = skipped
        self._listener = listener
        self._reattach = reattach
        self._flow = flow
        self._chunks = ChunkHandler(
            number,
            permits,
            position,
            reader,
            self.queue,
            chunked,
            acks,
            skipped,
            lambda delivery: self._arrived.append(delivery),
        )
        self._arrived: list[Delivery | PlainDeliveries] = []
        # Plain messages in `_arrived`, and their bytes. A call of `Permits.arrived` for each
        # message would cost more than all other work for it.
        self._plain = self._plain_bytes = 0

    # Called by the session: see `ConsumerHandler`

    def on_entry(
        self,
        ledger: int,
        entry: int,
        redelivery_count: int,
        ack_set: int,
        epoch: int,
        data: bytes,
        at: int,
        end: int,
    ) -> None:
        try:
            opened = self._reader.open(data, at, end)
        except EntryError as error:
            if self.queue.waiting:
                self.queue.append(
                    QueuedEntry(ledger, entry, redelivery_count, ack_set, error, 0, 0)
                )
            else:
                self._broken(ledger, entry, error)
            return
        size = end - at
        if self._reader.grown:
            size += self._reader.take_grown()
        position = self._position
        waiting = self.queue.waiting
        if (
            type(opened) is PlainMessage
            and epoch >= self.epoch
            and not waiting
            and (position is None or not position.has_passed(ledger, entry))
        ):
            # This branch equals `_open` without a call for each message. An entry must not overtake
            # entries that wait for decompression. An entry of an earlier epoch was on its way when
            # a rewind was requested, and the broker sends it again.
            self._plain += 1
            self._plain_bytes += size
            self._arrived.append(
                Delivery(self._number, ledger, entry, 0, redelivery_count, _ONLY, (opened,))
            )
        elif waiting or (type(opened) is CompressedEntry and epoch >= self.epoch):
            charged = messages_charged(opened, ack_set)
            if epoch >= self.epoch:
                self._reader.defer_decompression()
                self._permits.queued(charged, size)
                self.queue.append(
                    QueuedEntry(ledger, entry, redelivery_count, ack_set, opened, size, charged)
                )
            else:
                self._permits.arrived(charged, 0, size)
        else:
            self._open(ledger, entry, redelivery_count, ack_set, epoch, opened, size)

    def on_run(
        self,
        template: MessageTemplate,
        ledger: int,
        epoch: int,
        data: bytes,
        at: int,
        most: int,
        stop: int,
    ) -> int:
        # If an entry may need a decision, `on_entry` decides: a reader may have read the entry
        # before, a rewind may have outdated it, or earlier entries may still wait.
        if self._position is not None or epoch < self.epoch or self.queue.waiting:
            return at
        positions: list[tuple[int, int]] = []
        bodies: list[bytes] = []
        end = self._reader.take_run(template, ledger, data, at, most, stop, positions, bodies)
        if positions:
            self._plain += len(positions)
            self._plain_bytes += end - at
            messages = PlainMessages(self._reader.plain_source, bodies)
            self._arrived.append(PlainDeliveries(self._number, positions, messages))
        return end

    def on_entries_end(self) -> None:
        self.arrived_s = self._broker.loop.time()
        if self.queue.waiting:
            self.queue.advance()
        self._after_queue()

    # One entry

    def _open(
        self,
        ledger: int,
        entry: int,
        redelivery_count: int,
        ack_set: int,
        epoch: int,
        opened: EntryContent,
        size: int,
    ) -> None:
        """Handle a readable entry at the head of the queue."""
        position = self._position
        if epoch < self.epoch or (
            position is not None
            and position.has_passed(ledger, entry)
            and not self._chunks.is_missing(opened)
        ):
            self._permits.arrived(messages_charged(opened, ack_set), 0, size)
        elif isinstance(opened, PlainMessage):
            if isinstance(opened, SealedMessage):  # the broker may have counted a whole batch
                self._permits.arrived(messages_charged(opened, ack_set), 1, size)
            else:
                self._plain += 1
                self._plain_bytes += size
            self._arrived.append(
                Delivery(self._number, ledger, entry, 0, redelivery_count, _ONLY, (opened,))
            )
        elif isinstance(opened, BatchEntry):
            self._batch(ledger, entry, redelivery_count, ack_set, opened, size)
        elif isinstance(opened, Marker):
            self._permits.arrived(1, 0, size)
            self._skipped.skip_marker(ledger, entry)
        elif isinstance(opened, UndecryptableEntry):
            self._permits.arrived(messages_charged(opened, ack_set), 0, size)
            self._skipped.skip_undecryptable(ledger, entry, opened)
        elif isinstance(opened, ChunkEntry):
            self._chunks.add(ledger, entry, redelivery_count, ack_set, opened)

    def _batch(
        self,
        ledger: int,
        entry: int,
        redelivery_count: int,
        ack_set: int,
        opened: BatchEntry,
        size: int,
    ) -> None:
        count, messages, which = opened
        charged, indexes = count, range(count) if which is None else which
        first = 0 if self._position is None else self._position.first_index(ledger, entry)
        withheld = 0 if ack_set == -1 else ~ack_set & (1 << count) - 1
        if ack_set != -1 or which is not None or first:
            if ack_set != -1:
                charged = messages_charged(opened, ack_set)
            # Bytes, because shifting a number with a bit for each message is quadratic: seconds for
            # a batch of 100,000.
            unacked = (ack_set & (1 << count) - 1).to_bytes(count // 8 + 1, "little")
            kept = [
                (index, message)
                for index, message in zip(indexes, messages, strict=True)
                if unacked[index >> 3] >> (index & 7) & 1 and index >= first
            ]
            indexes = [index for index, _ in kept]
            messages = [message for _, message in kept]
            # Messages that are not delivered count as acked. Otherwise the entry would never be
            # acked.
            left = bytearray(count // 8 + 1)
            for index in indexes:
                left[index >> 3] |= 1 << (index & 7)
            ack_set = int.from_bytes(left, "little")
        self._permits.arrived(charged, len(messages), size)
        if messages:
            self._arrived.append(
                Delivery(
                    self._number,
                    ledger,
                    entry,
                    count,
                    redelivery_count,
                    indexes,
                    messages,
                    ack_set,
                    withheld=withheld,
                )
            )
        else:
            self._acks.ack_skipped([(ledger, entry)])

    def _broken(self, ledger: int, entry: int, error: EntryError) -> None:
        """Request a broken entry again, or skip it if it was broken before.

        Only the broker knows how many permits the entry used. Attaching again resets the permits to
        0 on both sides.
        """
        if self._broker.session is None:
            return
        if self._skipped.skip_if_broken_again(ledger, entry, error) and self._position is not None:
            self._pass_on()  # the position moves past the entry, so all before it leaves first
            self._position.move_past(ledger, entry, broken=True)
        self._reattach()

    # The decompression queue

    def _on_left_queue(self, queued: QueuedEntry, content: QueueOutput) -> None:
        self._permits.unqueued(queued.charged)
        ledger, entry, ack_set = queued.ledger, queued.entry, queued.ack_set
        if callable(content):
            content()
        elif isinstance(content, Exception) and not isinstance(content, EntryError):
            text = "%s: entry %d:%d cannot be read now: %r"
            self._log.error(text, self._broker.topic, ledger, entry, content)
            self._permits.arrived(queued.charged, 0, queued.size)
            if queued.chunks and self._position is not None:
                # It has left the queue, so `connection_lost` does not find it there.
                self._position.missing_chunks[queued.uuid] = queued.chunks[0]
            self._reattach()
        elif queued.chunks is not None:
            self._chunks.message(queued, queued.chunks, content)
        elif isinstance(content, EntryError):
            if queued.charged:
                self._permits.arrived(queued.charged, 0, queued.size)
            self._broken(ledger, entry, content)
        else:
            count, epoch = queued.redelivery_count, self.epoch
            self._open(ledger, entry, count, ack_set, epoch, content, queued.size)

    def after_queued(self, notify: Callable[[], None]) -> None:
        """Call `notify` once all entries that arrived have left the queue."""
        if self.queue.waiting:
            self.queue.append(QueuedEntry(-1, -1, 0, -1, notify, 0, 0))
        else:
            notify()

    def _delivered_so_far(self) -> int:
        permits = self._permits
        return permits.taken + permits.held - self.queue.charged + self._plain

    def _after_queue(self) -> None:
        if not self.queue.waiting:
            self._reader.begin_step()
        self._pass_on()
        self._flow()

    def drop_acked(self, plan: AckPlan) -> None:
        if self.queue.waiting:
            self._permits.withdrawn(self.queue.drop_acked(plan))

    def drop_queued(self) -> None:
        """Drop queued entries, because all unacked messages were requested again.

        The broker counts a redelivery for each entry. The application never saw them, so the
        listener must not count an attempt.
        """
        dropped = self.queue.drop_redelivered()
        self._permits.withdrawn(sum(each.charged for each, _ in dropped))
        unseen = [
            Delivery(self._number, each.ledger, each.entry, messages, 0, (), ())
            for each, messages in dropped
        ]
        if unseen:
            self._listener.on_all_requested(self._number, unseen)

    # Passing on, and dropping

    def _pass_on(self) -> None:
        self._count_plain()
        arrived, self._arrived = self._arrived, []
        if arrived:
            last = arrived[-1]
            if self._position is not None and isinstance(last, Delivery):
                self._position.move_past(last.ledger, last.entry)
            self._listener.on_deliveries(arrived)
        self._skipped.send_reports()

    def _count_plain(self) -> None:
        if self._plain:
            self._permits.arrived(self._plain, self._plain, self._plain_bytes)
            self._plain = self._plain_bytes = 0

    def begin_epoch(self) -> None:
        """Drop all that arrived, and later all entries of earlier epochs."""
        self.epoch += 1
        self.drop_all()

    def drop_all(self) -> None:
        """Drop all that was not delivered, incomplete chunked messages included."""
        self._drop_arrived()
        self._chunked.clear()

    def connection_lost(self) -> None:
        """Drop all that arrived, and note which chunked messages a reader needs again."""
        self._skipped.drop_reports()
        dropped = self._drop_arrived()
        if self._position is not None:
            missing = self._position.missing_chunks
            missing |= self._chunked.assembler.begun()
            missing |= {each.uuid: each.chunks[0] for each in dropped if each.chunks}
        self._chunked.clear()

    def _drop_arrived(self) -> list[QueuedEntry]:
        """Drop all undelivered entries, and return the queued ones."""
        self._count_plain()
        dropped, self._arrived = self._arrived, []
        for each in dropped:
            self._permits.withdrawn(len(each.messages))
        return self.clear_queue()

    def clear_queue(self) -> list[QueuedEntry]:
        self._reader.begin_step()
        self._permits.withdrawn(self.queue.charged)
        return self.queue.clear()
