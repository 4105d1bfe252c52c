"""What the transport tells a consumer: deliveries, connections coming and going, rewinds.

Owns `DeliveryHandler`, the consumer's `DeliveryListener`. Every delivered message is either queued
or already someone's; what is not queued gives its room back at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING

from ..core.entry import Entry
from ..core.fingerprint import NO_FINGERPRINT
from ..core.rewind import Admission, Rewind
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
from .topic_states import TopicStates
from .unacked_window import UnackedWindowMonitor

if TYPE_CHECKING:  # a consumer that keeps no state loads none of its modules
    from .state_writer import StateWriter

logger: logging.Logger = logging.getLogger(__name__)


class DeliveryHandler:
    """Feeds `queue` from what `link` delivers.

    Args:
        link: The subscription.
        sources: Of the consumer.
        queue: What the application receives from.
        acks: Told when something acked has to be acked again.
        window: Watched while it fills.
        redelivery: Rewinds again when a delivery shows that something is missing.
        event_publisher: Told of all that is no message.
        loop: The consumer's event loop.
        arrivals: Holds back what is no message for the application; None without letter topics, and
            where that is asked when the turn of a message comes.
        state_writer: Keeps what outlives the process; None when nothing does.
    """

    def __init__(
        self,
        link: TransportConsumer,
        sources: TopicStates,
        queue: ReceiveQueue,
        acks: AckSender,
        window: UnackedWindowMonitor,
        redelivery: Redelivery,
        event_publisher: EventPublisher,
        loop: asyncio.AbstractEventLoop,
        arrivals: ArrivalFilter | None = None,
        state_writer: StateWriter | None = None,
    ) -> None:
        self._link = link
        self._sources = sources
        self._queue = queue
        self._acks = acks
        self._window = window
        self._redelivery = redelivery
        self._event_publisher = event_publisher
        self._loop = loop
        self._arrivals = arrivals
        self._state_writer = state_writer
        self._foreign: StateMismatchError | None = None

    def on_deliveries(self, deliveries: Deliveries) -> None:
        if self._foreign is not None:
            return  # the consumer has failed: the broker sends it again to another one
        now = now_ms(self._loop)
        self._acks.arrived(now)
        arrived = 0
        for each in deliveries:
            singly: Iterable[Delivery] = (each,) if isinstance(each, Delivery) else ()
            if isinstance(each, PlainDeliveries):
                queued = self._run(each)
                arrived += queued
                if queued < len(each.places):  # something is special: one by one
                    singly = each.singly(queued)
            for delivery in singly:
                arrived += self._one(delivery, now)
                if self._foreign is not None:
                    self._end(self._foreign)
                    return
        if arrived:
            self._queue.wake(arrived)
            self._window.watch()
        if self._state_writer is not None:
            self._state_writer.watch()

    def fail_foreign(self, error: StateMismatchError) -> None:
        """End the consumer after the message that arrives: the state is of another cluster."""
        self._foreign = error

    def _end(self, error: StateMismatchError) -> None:
        """End the consumer. What is queued is not handed over, because all of it would be taken
        for messages that nobody has received before."""
        states = self._sources.of(None)
        for state in states:
            state.disconnected()
        self._queue.drop(states)
        self.on_failed(error)

    def _run(self, run: PlainDeliveries) -> int:
        """Queue the first of some plain messages that need no look at each; return how many."""
        state = self._sources.by_number[run.source]
        entries: list[Entry] = []
        if self._arrivals is None:
            entries = state.arrive_first(run.places)
        count = len(entries)
        if count:
            if state.durable is not None:
                for entry, message in zip(entries, run.messages, strict=False):
                    entry.came_as = message
            self._queue.push_run(entries, run.messages[:count])
        return count

    def _one(self, delivery: Delivery, now: int) -> int:
        """Queue the wanted messages of an entry; return how many."""
        state = self._sources.by_number[delivery.source]
        if state.rewind is not None and not self._in_order(state, state.rewind, delivery):
            self._link.consumed(delivery.source, len(delivery.indexes))
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
        )
        delivered = len(indexes)
        if len(positions) < delivered:
            indexes = [indexes[at] for at in positions]
            messages = [messages[at] for at in positions]
            if len(state.acks):
                self._acks.added(state, 1)  # something acked came again
            if len(state.nacks):
                self._redelivery.waits(state)  # or something that waits, too early
        if entry is not None and self._arrivals is not None:
            indexes, messages = self._arrivals.admit(state, entry, indexes, messages)
        count = len(indexes)
        if count < delivered:
            self._link.consumed(delivery.source, delivered - count)
            self._queue.want()
        if entry is None or not count:
            return 0
        self._queue.push(entry, indexes, messages)
        return count

    def _in_order(self, state: TopicState, rewind: Rewind, delivery: Delivery) -> bool:
        """Whether an Exclusive or Failover delivery may be handed out now (see `core.rewind`)."""
        if delivery.first_chunk is not None:
            rewind.trust_holes()
        admission = rewind.judge((delivery.ledger, delivery.entry), delivery.indexes[0])
        if admission is Admission.REWIND:
            self._redelivery.rewind_again(state)
        return admission is Admission.ADMIT

    def on_connected(self, only: Container[int] | None = None) -> None:
        states = self._sources.heard("connected", only)
        self._acks.connected(states)
        self._redelivery.connected(states)
        self._event_publisher.connected(only)

    def on_disconnected(self, only: Container[int] | None = None) -> None:
        states = self._sources.heard("disconnected", only)
        self._acks.disconnected(states)
        for state in states:
            state.disconnected()
        self._queue.drop(states)
        self._event_publisher.disconnected(only)

    def on_uncertain(self, only: Container[int] | None = None) -> None:
        states = self._sources.heard("doubtful", only)
        self._acks.doubtful(states)
        for state in states:  # a copy may be the reconnect's, which the broker does not count
            state.window.all_requested = False
        self._event_publisher.doubtful(only)

    def on_all_requested(
        self, unseen: Sequence[Delivery], only: Container[int] | None = None
    ) -> None:
        for state in self._sources.of(only):
            if state.shared:
                state.window.all_requested = True
        for each in unseen:
            state, key = self._sources.by_number[each.source], (each.ledger, each.entry)
            if each.batch_size > 1:
                state.attempts.batch_asked(key)
            else:
                state.ignore_copy(key, 1)

    def on_seek(self, only: Container[int] | None = None) -> None:
        states = self._sources.heard("sought", only)
        for state in states:
            state.reset()
        self._acks.receipts.sought(states)
        self._event_publisher.sought(only)
        self._queue.drop(states)

    def on_end_of_topic(self, source: int) -> None:
        self._event_publisher.end_of_topic(source)

    def on_active_changed(self, source: int, active: bool) -> None:
        self._event_publisher.active_changed(source, active)

    def on_new_source(self, source: int) -> None:
        self._event_publisher.new_source(source)

    def on_removed(self, source: int) -> None:
        self._event_publisher.removed(source)

    def on_skipped(self, source: int, entries: Sequence[SkippedEntry]) -> None:
        """Told of subscriptions that are not durable."""

    def on_retrying(self, source: int | None, notice: RetryNotice) -> None:
        self._event_publisher.retrying(source, notice)

    def on_failed(self, error: Exception, source: int | None = None) -> None:
        if isinstance(error, ShutDownError) and self._sources.unsent_acks:
            logger.warning(
                "%s/%s: the client was shut down, or its event loop ends, and the consumer was not "
                "closed: acks of %d entries were not sent, and their messages are delivered again. "
                "Await close() of the consumer or of the client first",
                self._link.topic,
                self._link.subscription_name,
                self._sources.unsent_acks,
            )
        self._queue.fail(error)
        self._acks.receipts.fail(error)
        self._event_publisher.failed(error, source)
