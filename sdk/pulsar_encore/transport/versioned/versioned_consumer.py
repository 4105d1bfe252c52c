"""A transport consumer that holds messages back until their schema is known."""

from __future__ import annotations

from typing import Protocol

from ...options import Subscription
from ..interface import Capabilities, DeliveryListener, TransportConsumer
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
        # These calls do not concern waiting messages.
        self.is_connected = consumer.is_connected
        self.topic_of = consumer.topic_of
        self.topic_numbers = consumer.topic_numbers
        self.topic_number_of = consumer.topic_number_of
        self.consumed = consumer.consumed
        self.request_messages = consumer.request_messages
        self.stop_flow = consumer.stop_flow
        self.can_ack = consumer.can_ack
        self.ack = consumer.ack
        self.redeliver = consumer.redeliver
        self.seek = consumer.seek
        self.last_message_id = consumer.last_message_id
        self.acked_position = consumer.acked_position

    @property
    def topic(self) -> str:
        return self._consumer.topic

    @property
    def subscription_name(self) -> str:
        return self._consumer.subscription_name

    @property
    def consumer_name(self) -> str:
        return self._consumer.consumer_name

    def start(self, listener: DeliveryListener) -> None:
        durable = self._subscription.durable
        self._gate = SchemaGate(self._consumer, self._versions, listener, durable=durable)
        self._consumer.start(self._gate)

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

    async def has_message_available(self) -> bool:
        if self._has_waiting():
            return True
        # If a message arrives during the request, the broker's answer is about messages behind it.
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
