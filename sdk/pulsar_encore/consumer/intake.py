"""What the transport tells a consumer: deliveries, connections coming and going, rewinds.

Owns `Intake`, the consumer's `Sink`. Every delivered message is either queued or already someone's;
what is not queued gives its room back at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Sequence

from ..core.rewind import Admission, Rewind
from ..core.source_state import SourceState
from ..timer import now_ms
from ..transport.base import ConsumerLink, Delivery
from .forwarding.arrivals import Arrivals
from .receiving.queue import ReceiveQueue
from .settling.ack_sender import AckSender
from .settling.redelivery import Redelivery
from .sources import Sources
from .window import Window


class Intake:
    """Feeds `queue` from what `link` delivers.

    Args:
        link: The subscription.
        sources: Of the consumer.
        queue: What the application receives from.
        acks: Told when something acked has to be acked again.
        window: Watched while it fills.
        redelivery: Rewinds again when a delivery shows that something is missing.
        loop: The consumer's event loop.
        arrivals: Holds back what is no message for the application; None without letter topics.
    """

    def __init__(
        self,
        link: ConsumerLink,
        sources: Sources,
        queue: ReceiveQueue,
        acks: AckSender,
        window: Window,
        redelivery: Redelivery,
        loop: asyncio.AbstractEventLoop,
        arrivals: Arrivals | None = None,
    ) -> None:
        self._link = link
        self._sources = sources
        self._queue = queue
        self._acks = acks
        self._window = window
        self._redelivery = redelivery
        self._loop = loop
        self._arrivals = arrivals

    def on_deliveries(self, deliveries: Iterable[Delivery]) -> None:
        arrived = 0
        now = now_ms(self._loop)
        states, arrivals = self._sources.by_number, self._arrivals
        self._acks.arrived(now)
        for each in deliveries:
            state = states[each.source]
            if state.rewind is not None and not self._in_order(state, state.rewind, each):
                self._link.consumed(each.source, len(each.indexes))
                continue
            indexes, messages = each.indexes, each.messages
            entry, positions = state.arrive(
                (each.ledger, each.entry),
                each.batch_size,
                each.redelivery_count,
                indexes,
                each.ack_set,
                each.first_chunk,
                now,
            )
            delivered = len(indexes)
            if len(positions) < delivered:
                indexes = [indexes[at] for at in positions]
                messages = [messages[at] for at in positions]
                if len(state.acks):
                    self._acks.added(state, 1)  # something acked came again
                if len(state.nacks):
                    self._redelivery.waits(state)  # or something that waits, too early
            if entry is not None and arrivals is not None:
                indexes, messages = arrivals.admit(state, entry, indexes, messages)
            count = len(indexes)
            if count < delivered:
                self._link.consumed(each.source, delivered - count)
            if entry is not None and count:
                self._queue.push(entry, indexes, messages)
                arrived += count
        if arrived:
            self._queue.wake(arrived)
            self._window.watch()

    def _in_order(self, state: SourceState, rewind: Rewind, delivery: Delivery) -> bool:
        """Whether an Exclusive or Failover delivery may be handed out now (see `core.rewind`)."""
        if delivery.first_chunk is not None:
            rewind.trust_holes()
        admission = rewind.judge((delivery.ledger, delivery.entry), delivery.indexes[0])
        if admission is Admission.REWIND:
            self._redelivery.rewind_again(state)
        return admission is Admission.ADMIT

    def on_connected(self, only: Container[int] | None = None) -> None:
        self._acks.connected(self._sources.heard("connected", only))

    def on_disconnected(self, only: Container[int] | None = None) -> None:
        states = self._sources.heard("disconnected", only)
        self._acks.disconnected(states)
        for state in states:
            state.disconnected()
        self._queue.drop(states)

    def on_doubtful(self, only: Container[int] | None = None) -> None:
        states = self._sources.heard("doubtful", only)
        self._acks.doubtful(states)
        for state in states:  # a copy may be the reconnect's, which the broker does not count
            state.duplicates.asked_all = False

    def on_asked_all(self, unseen: Sequence[Delivery], only: Container[int] | None = None) -> None:
        for state in self._sources.of(only):
            if state.shared:
                state.duplicates.asked_all = True
        for each in unseen:
            state = self._sources.by_number[each.source]
            state.overlook((each.ledger, each.entry), each.batch_size or 1)

    def on_sought(self, only: Container[int] | None = None) -> None:
        states = self._sources.heard("sought", only)
        for state in states:
            state.reset()
        self._queue.drop(states)

    def on_failed(self, error: Exception) -> None:
        self._queue.fail(error)
