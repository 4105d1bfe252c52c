"""The consumer's `DeliveryListener`: deliveries, connections, seeks and failures."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterable, Sequence
from typing import TYPE_CHECKING

from ..core.entry import Entry
from ..core.fingerprint import NO_FINGERPRINT
from ..core.rewind_check import Admission, Rewind
from ..core.topic_state import TopicState
from ..errors import StateMismatchError
from ..eventloop.alarm import now_ms
from ..transport.interface import (
    Deliveries,
    Delivery,
    PlainDeliveries,
    RetryNotice,
    ShutDownError,
    SkippedEntry,
    TransportConsumer,
)
from .delivery.receive_queue import ReceiveQueue
from .event_publisher import EventPublisher
from .forwarding.arrival_filter import ArrivalFilter
from .settlement.ack_sender import AckSender
from .settlement.redelivery import Redelivery
from .settlement.rewinds import Rewinds
from .topic_states import TopicStates
from .unacked_window_monitor import UnackedWindowMonitor

if TYPE_CHECKING:  # a consumer without `state` imports none of these modules
    from .state_writer import StateWriter


class DeliveryHandler:
    """Queues delivered messages, except copies that `TopicState.arrive` filters.

    Args:
        arrivals: Filters arriving messages; None without letter topics, and with ordered leases,
            which filter a message when it is the next of its key.
    """

    def __init__(
        self,
        transport_consumer: TransportConsumer,
        topic_states: TopicStates,
        queue: ReceiveQueue,
        acks: AckSender,
        window: UnackedWindowMonitor,
        redelivery: Redelivery,
        rewinds: Rewinds,
        event_publisher: EventPublisher,
        loop: asyncio.AbstractEventLoop,
        arrivals: ArrivalFilter | None = None,
        state_writer: StateWriter | None = None,
        logger_of: Callable[[str], logging.Logger] = logging.getLogger,
    ) -> None:
        self._logger = logger_of(__name__)
        self._transport_consumer = transport_consumer
        self._topic_states = topic_states
        self._queue = queue
        self._acks = acks
        self._window = window
        self._redelivery = redelivery
        self._rewinds = rewinds
        self._event_publisher = event_publisher
        self._loop = loop
        self._arrivals = arrivals
        self._state_writer = state_writer
        self._foreign_state_error: StateMismatchError | None = None
        #: Called after each seek of a topic, before its first message arrives.
        self.on_sought: Callable[[], None] | None = None

    def on_deliveries(self, deliveries: Deliveries) -> None:
        if self._foreign_state_error is not None:
            # The broker redelivers these messages to another consumer.
            return
        now = now_ms(self._loop)
        self._acks.note_arrival(now)
        arrived = 0
        for each in deliveries:
            singly: Iterable[Delivery] = (each,) if isinstance(each, Delivery) else ()
            if isinstance(each, PlainDeliveries):
                queued = self._queue_plain(each)
                arrived += queued
                if queued < len(each.positions):  # the next message needs its own check
                    singly = each.each_delivery(queued)
            for delivery in singly:
                arrived += self._queue_entry(delivery, now)
                if self._foreign_state_error is not None:
                    self._end(self._foreign_state_error)
                    return
        if arrived:
            self._queue.wake(arrived)
            self._window.warn_if_nearly_full(arrived)
        if self._state_writer is not None:
            self._state_writer.watch()

    def note_foreign_state(self, error: StateMismatchError) -> None:
        """Note that the state directory belongs to another cluster.

        `on_deliveries` ends the consumer after the current entry.
        """
        self._foreign_state_error = error

    def _end(self, error: StateMismatchError) -> None:
        """End the consumer and drop its queue: all queued messages would wrongly count as new."""
        states = self._topic_states.of(None)
        for state in states:
            state.disconnected()
        self._queue.drop(states)
        self.on_failed(error)

    def _queue_plain(self, run: PlainDeliveries) -> int:
        """Queue the leading messages that need no check of their own."""
        state = self._topic_states.by_number[run.topic_number]
        entries: list[Entry] = []
        # The dead-letter policy has nothing to decide about a first delivery, but a letter may be
        # early.
        if self._arrivals is None or not state.letters:
            entries = state.arrive_first(run.positions)
        count = len(entries)
        if count:
            if state.durable is not None:
                for entry, message in zip(entries, run.messages, strict=False):
                    entry.fingerprint_source = message
            self._queue.push_run(entries, run.messages[:count])
        return count

    def _queue_entry(self, delivery: Delivery, now: int) -> int:
        state = self._topic_states.by_number[delivery.topic_number]
        if state.rewind is not None and not self._admit_in_order(state, state.rewind, delivery):
            self._transport_consumer.consumed(delivery.topic_number, len(delivery.indexes))
            self._queue.want()
            return 0
        indexes, messages = delivery.indexes, delivery.messages
        entry, positions = state.arrive(
            (delivery.ledger, delivery.entry),
            delivery.batch_size,
            delivery.redelivery_count,
            indexes,
            delivery.ack_set,
            delivery.first_chunk,
            now,
            NO_FINGERPRINT if state.durable is None else messages[0],
            delivery.withheld,
        )
        delivered = len(indexes)
        if len(positions) < delivered:
            indexes = [indexes[at] for at in positions]
            messages = [messages[at] for at in positions]
            if len(state.acks):
                self._acks.added(state, 1)  # an acked message was redelivered, so it is acked again
            if len(state.nacks):
                self._redelivery.rearm(state)  # a nacked message was redelivered before its time
        if entry is not None and self._arrivals is not None:
            indexes, messages = self._arrivals.admit(state, entry, indexes, messages)
        count = len(indexes)
        if count < delivered:
            self._transport_consumer.consumed(delivery.topic_number, delivered - count)
            self._queue.want()
        if entry is None or not count:
            return 0
        self._queue.push(entry, indexes, messages)
        return count

    def _admit_in_order(self, state: TopicState, rewind: Rewind, delivery: Delivery) -> bool:
        """Return True if a delivery may be queued now; repeat the rewind if entries are missing."""
        if delivery.first_chunk is not None:
            rewind.trust_holes()
        admission = rewind.judge((delivery.ledger, delivery.entry), delivery.indexes[0])
        if admission is Admission.REWIND:
            self._rewinds.repeat(state)
        return admission is Admission.ADMIT

    def on_connected(self, topics: Container[int] | None = None) -> None:
        states = self._topic_states.record_change("connected", topics)
        self._acks.connected(states)
        self._redelivery.connected(states)
        self._event_publisher.connected(topics)

    def on_disconnected(self, topics: Container[int] | None = None) -> None:
        states = self._topic_states.record_change("disconnected", topics)
        self._acks.disconnected(states)
        # On Exclusive and Failover, messages that the application gave back survive, as messages
        # that it holds do. Otherwise one that it gives back later could be received before them.
        returned = self._queue.returned([state for state in states if not state.shared])
        for entry, index, _ in returned:
            entry.deliver(index)
        for state in states:
            state.disconnected()
        self._queue.drop(states)
        for entry, index, message in returned:
            entry.requeue(index)
            self._queue.put_back(entry, index, message)
        self._event_publisher.disconnected(topics)

    def on_uncertain(self, topics: Container[int] | None = None) -> None:
        states = self._topic_states.record_change("uncertain", topics)
        self._acks.uncertain(states)
        for state in states:  # a copy may belong to the reconnect, which the broker does not count
            state.window.all_requested = False
        self._event_publisher.uncertain(topics)

    def on_all_requested(
        self, unseen: Sequence[Delivery], topics: Container[int] | None = None
    ) -> None:
        for state in self._topic_states.of(topics):
            if state.shared:
                state.window.all_requested = True
        for each in unseen:
            state, key = self._topic_states.by_number[each.topic_number], (each.ledger, each.entry)
            if each.batch_size > 1:
                state.attempts.batch_requested(key)
            else:
                state.ignore_copy(key, 1)

    def on_seek(self, topics: Container[int] | None = None) -> None:
        states = self._topic_states.record_change("sought", topics)
        for state in states:
            state.reset()
        self._acks.receipts.sought(states)
        self._event_publisher.sought(topics)
        self._queue.drop(states)
        if self.on_sought is not None:
            self.on_sought()

    def on_end_of_topic(self, topic_number: int) -> None:
        self._event_publisher.end_of_topic(topic_number)

    def on_active_changed(self, topic_number: int, active: bool) -> None:
        self._event_publisher.active_changed(topic_number, active)

    def on_new_topic(self, topic_number: int) -> None:
        self._event_publisher.new_topic(topic_number)

    def on_removed(self, topic_number: int) -> None:
        self._event_publisher.removed(topic_number)

    def on_skipped(self, topic_number: int, entries: Sequence[SkippedEntry]) -> None:
        """Do nothing: the transport acks the skipped entries."""

    def on_retrying(self, topic_number: int | None, notice: RetryNotice) -> None:
        self._event_publisher.retrying(topic_number, notice)

    def on_failed(self, error: Exception, topic_number: int | None = None) -> None:
        if isinstance(error, ShutDownError) and self._topic_states.unsent_acks:
            self._logger.warning(
                "%s/%s: the client was shut down, or its event loop ends, and the consumer was not "
                "closed: acks of %d entries were not sent, and their messages are delivered again. "
                "Await close() of the consumer or of the client first",
                self._transport_consumer.topic,
                self._transport_consumer.subscription_name,
                self._topic_states.unsent_acks,
            )
        self._queue.fail(error)
        self._acks.receipts.fail(error)
        self._event_publisher.failed(error, topic_number)
