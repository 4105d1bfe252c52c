"""A delivery listener that records deliveries, for tests of the transport interface."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Sequence

from pulsar_encore.options import ConsumerType, InitialPosition, Subscription
from pulsar_encore.transport.interface import (
    AckPlan,
    Deliveries,
    Delivery,
    RetryNotice,
    SkippedEntry,
    Transport,
    TransportConsumer,
    each_delivery,
)

from .contract_kit import SUBSCRIPTION, WAIT_S

# Longer than the C++ client groups acks and redelivery requests, in s.
SENT_S = 0.22


class Recording:
    """The `DeliveryListener` of one transport consumer. Every delivery is consumed at once.

    Attributes:
        deliveries: Deliveries in order.
        events: Names of the other calls.
        retrying: (topic_number, notice) of each failed resubscription.
        skipped: (ledger, entry, reason) of each entry without a delivery.
        received: (body, broker's redelivery count) of each message that is not acked at the broker.
    """

    def __init__(self, consumer: TransportConsumer) -> None:
        self.consumer = consumer
        self.deliveries: list[Delivery] = []
        self.events: list[str] = []
        self.retrying: list[tuple[int | None, RetryNotice]] = []
        self.skipped: list[tuple[int, int, str]] = []
        self.received: list[tuple[bytes, int]] = []
        self._changed = asyncio.Event()
        consumer.start(self)

    def on_deliveries(self, deliveries: Deliveries) -> None:
        for each in each_delivery(deliveries):
            self.deliveries.append(each)
            self.received += [
                (message.data(), each.redelivery_count)
                for index, message in zip(each.indexes, each.messages, strict=True)
                if each.ack_set >> index & 1
            ]
            self.consumer.consumed(each.topic_number, len(each.indexes))
        self._changed.set()

    def on_connected(self, only: Container[int] | None = None) -> None:
        self.events.append("connected")

    def on_disconnected(self, only: Container[int] | None = None) -> None:
        self.events.append("disconnected")

    def on_all_requested(
        self, unseen: Sequence[Delivery], only: Container[int] | None = None
    ) -> None:
        self.events.append("all requested")

    def on_seek(self, only: Container[int] | None = None) -> None:
        self.events.append("seek")

    def on_uncertain(self, only: Container[int] | None = None) -> None:
        self.events.append("uncertain")

    def on_end_of_topic(self, topic_number: int) -> None:
        self.events.append("end of topic")

    def on_active_changed(self, topic_number: int, active: bool) -> None:
        self.events.append("active" if active else "inactive")

    def on_new_topic(self, topic_number: int) -> None:
        self.events.append("new topic")

    def on_removed(self, topic_number: int) -> None:
        self.events.append(f"removed {topic_number}")

    def on_skipped(self, topic_number: int, entries: Sequence[SkippedEntry]) -> None:
        self.skipped += [(ledger, entry, why.name) for ledger, entry, why, _ in entries]
        self._changed.set()

    def on_retrying(self, topic_number: int | None, notice: RetryNotice) -> None:
        self.retrying.append((topic_number, notice))

    def on_failed(self, error: Exception, topic_number: int | None = None) -> None:
        self.events.append(f"failed: {error}")
        self._changed.set()

    async def next(self, count: int) -> list[tuple[bytes, int]]:
        """Remove and return the next `count` items of `received`."""
        async with asyncio.timeout(WAIT_S):
            while len(self.received) < count:
                self._changed.clear()
                await self._changed.wait()
        next_messages, self.received = self.received[:count], self.received[count:]
        return next_messages

    async def wait_for_skipped(self, count: int) -> None:
        """Wait until `count` entries have been reported as skipped."""
        async with asyncio.timeout(WAIT_S):
            while len(self.skipped) < count:
                self._changed.clear()
                await self._changed.wait()

    def redeliver_last(self) -> None:
        """Request the entry of the last delivery again."""
        last = self.deliveries[-1]
        self.consumer.redeliver(last.topic_number, [(last.ledger, [last.entry])])

    async def ack_indexes(self, *indexes: int) -> None:
        """Ack indexes of the last delivery's batch, and wait until the acks are sent."""
        last = self.deliveries[-1]
        mask = (1 << last.batch_size) - 1
        for index in indexes:
            mask &= ~(1 << index)
        partial = [(last.ledger, last.entry, last.batch_size, mask)]
        self.consumer.ack(AckPlan(last.topic_number, None, [], partial))
        await asyncio.sleep(SENT_S)


async def record(
    transport: Transport,
    topic: str,
    kind: ConsumerType = ConsumerType.Shared,
    name: str | None = None,
) -> Recording:
    """Subscribe through the transport interface, at the beginning of the topic."""
    subscription = Subscription(
        topics=(topic,),
        subscription_name=SUBSCRIPTION,
        consumer_type=kind,
        consumer_name=name,
        initial_position=InitialPosition.Earliest,
    )
    return Recording(await transport.subscribe(subscription))
