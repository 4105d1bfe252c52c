"""A transport consumer that holds messages back until their schema is known."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Sequence
from typing import Protocol

from ...options import Subscription
from ...values.message_id import MessageId
from ..interface import (
    AckPlan,
    Capabilities,
    DeliveryListener,
    TopicEnds,
    TransportConsumer,
    TransportTransaction,
)
from .schema_gate import SchemaGate
from .versioned_messages import SchemaVersions


class Abandonable(TransportConsumer, Protocol):
    """A transport consumer that can be dropped without waiting."""

    def abandon(self) -> None:
        """Drop everything, without waiting."""


class VersionedConsumer:
    """A `TransportConsumer` for a schema with versions."""

    def __init__(
        self, consumer: Abandonable, subscription: Subscription, versions: SchemaVersions
    ) -> None:
        self._consumer = consumer
        self._subscription = subscription
        self._versions = versions
        self._gate: SchemaGate | None = None
        self.capabilities: Capabilities = consumer.capabilities

    @property
    def topic(self) -> str:
        return self._consumer.topic

    @property
    def subscription_name(self) -> str:
        return self._consumer.subscription_name

    @property
    def consumer_name(self) -> str:
        return self._consumer.consumer_name

    def is_connected(self) -> bool:
        return self._consumer.is_connected()

    def topic_of(self, topic_number: int) -> tuple[str, int]:
        return self._consumer.topic_of(topic_number)

    def topic_numbers(self) -> Collection[int]:
        return self._consumer.topic_numbers()

    def topic_number_of(self, topic: str, partition: int, ledger: int = -1) -> int | None:
        return self._consumer.topic_number_of(topic, partition, ledger)

    def start(self, listener: DeliveryListener) -> None:
        durable = self._subscription.durable
        self._gate = SchemaGate(self._consumer, self._versions, listener, durable=durable)
        self._consumer.start(self._gate)

    def consumed(self, topic_number: int, messages: int) -> None:
        self._consumer.consumed(topic_number, messages)

    def request_messages(self, messages: int) -> None:
        self._consumer.request_messages(messages)

    def stop_flow(self) -> None:
        self._consumer.stop_flow()

    def can_ack(self, topic_number: int) -> bool:
        return self._consumer.can_ack(topic_number)

    def ack(self, plan: AckPlan) -> Awaitable[None] | None:
        return self._consumer.ack(plan)

    def ack_in_transaction(self, plan: AckPlan, txn: TransportTransaction) -> asyncio.Future[None]:
        return self._consumer.ack_in_transaction(plan, txn)

    def redeliver(self, topic_number: int, groups: Sequence[tuple[int, Sequence[int]]]) -> None:
        self._consumer.redeliver(topic_number, groups)

    def redeliver_all(self, topic_number: int | None = None) -> None:
        self._consumer.redeliver_all(topic_number)
        if self._gate is None:
            return
        topics = (
            (topic_number,)
            if topic_number is not None and self.capabilities.rewind_one_topic
            else None
        )
        unseen = self._gate.drop(topics)  # from before the rewind, which redelivers it in order
        if self._subscription.shared:
            self._gate.on_all_requested(unseen, topics)

    async def seek(self, position: MessageId | int) -> None:
        await self._consumer.seek(position)

    async def last_message_id(self) -> MessageId:
        return await self._consumer.last_message_id()

    async def ends_of(self, topic_number: int) -> TopicEnds | None:
        return await self._consumer.ends_of(topic_number)

    async def acked_position(self) -> MessageId | None:
        return await self._consumer.acked_position()

    async def has_message_available(self) -> bool:
        if self._has_waiting():
            return True
        # If a message arrives during the request, the broker's answer is about messages after it.
        return await self._consumer.has_message_available() or self._has_waiting()

    def _has_waiting(self) -> bool:
        return self._gate is not None and self._gate.holds

    async def unsubscribe(self) -> None:
        await self._consumer.unsubscribe()
        self._stop()

    async def close(self) -> None:
        self._stop()
        await self._consumer.close()

    def abandon(self) -> None:
        self._stop()
        self._consumer.abandon()

    def _stop(self) -> None:
        if self._gate is not None:
            self._gate.close()
