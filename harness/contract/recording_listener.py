"""A sink that keeps what a link delivers, for tests at the seam."""

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
    singly,
)

from .contract_kit import SUBSCRIPTION, WAIT_S

# Longer than the stock client keeps acks and redelivery requests back.
SENT_S = 0.22


class Recording:
    """`DeliveryListener` of one link; everything delivered is consumed at once.

    Attributes:
        deliveries: As they came.
        events: Names of the other calls.
        retrying: (source, notice) of each refused attempt to attach again that the link reported.
        unread: (ledger, entry, why) of each entry that is no delivery.
        seen: (body, broker's redelivery count) of each message that is not acked at the broker.
    """

    def __init__(self, link: TransportConsumer) -> None:
        self.link = link
        self.deliveries: list[Delivery] = []
        self.events: list[str] = []
        self.retrying: list[tuple[int | None, RetryNotice]] = []
        self.unread: list[tuple[int, int, str]] = []
        self.seen: list[tuple[bytes, int]] = []
        self._more = asyncio.Event()
        link.start(self)

    def on_deliveries(self, deliveries: Deliveries) -> None:
        for each in singly(deliveries):
            self.deliveries.append(each)
            self.seen += [
                (message.data(), each.redelivery_count)
                for index, message in zip(each.indexes, each.messages, strict=True)
                if each.ack_set >> index & 1
            ]
            self.link.consumed(each.source, len(each.indexes))
        self._more.set()

    def on_connected(self, only: Container[int] | None = None) -> None:
        self.events.append("connected")

    def on_disconnected(self, only: Container[int] | None = None) -> None:
        self.events.append("disconnected")

    def on_all_requested(
        self, unseen: Sequence[Delivery], only: Container[int] | None = None
    ) -> None:
        self.events.append("asked for all")

    def on_seek(self, only: Container[int] | None = None) -> None:
        self.events.append("rewound")

    def on_uncertain(self, only: Container[int] | None = None) -> None:
        self.events.append("in doubt")

    def on_end_of_topic(self, source: int) -> None:
        self.events.append("end of topic")

    def on_active_changed(self, source: int, active: bool) -> None:
        self.events.append("active" if active else "standing by")

    def on_new_source(self, source: int) -> None:
        self.events.append("new source")

    def on_removed(self, source: int) -> None:
        self.events.append(f"removed {source}")

    def on_skipped(self, source: int, entries: Sequence[SkippedEntry]) -> None:
        self.unread += [(ledger, entry, why.name) for ledger, entry, why, _ in entries]
        self._more.set()

    def on_retrying(self, source: int | None, notice: RetryNotice) -> None:
        self.retrying.append((source, notice))

    def on_failed(self, error: Exception, source: int | None = None) -> None:
        self.events.append(f"failed: {error}")
        self._more.set()

    async def next(self, count: int) -> list[tuple[bytes, int]]:
        """The next so many of `seen`, which are taken from it."""
        async with asyncio.timeout(WAIT_S):
            while len(self.seen) < count:
                self._more.clear()
                await self._more.wait()
        taken, self.seen = self.seen[:count], self.seen[count:]
        return taken

    async def until_unread(self, count: int) -> None:
        """Until it has been told of so many entries that are no messages."""
        async with asyncio.timeout(WAIT_S):
            while len(self.unread) < count:
                self._more.clear()
                await self._more.wait()

    def redeliver_last(self) -> None:
        """Ask for the entry of the last delivery again."""
        last = self.deliveries[-1]
        self.link.redeliver(last.source, [(last.ledger, [last.entry])])

    async def ack_indexes(self, *indexes: int) -> None:
        """Ack indexes of the last delivery's batch, and wait until they are sent."""
        last = self.deliveries[-1]
        mask = (1 << last.batch_size) - 1
        for index in indexes:
            mask &= ~(1 << index)
        partial = [(last.ledger, last.entry, last.batch_size, mask)]
        self.link.ack(AckPlan(last.source, None, [], partial))
        await asyncio.sleep(SENT_S)


async def record(
    transport: Transport,
    topic: str,
    kind: ConsumerType = ConsumerType.Shared,
    name: str | None = None,
) -> Recording:
    """Subscribe at the seam, from the beginning."""
    subscription = Subscription(
        topics=(topic,),
        subscription_name=SUBSCRIPTION,
        consumer_type=kind,
        consumer_name=name,
        initial_position=InitialPosition.Earliest,
    )
    return Recording(await transport.subscribe(subscription))
