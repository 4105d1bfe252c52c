"""A queue for deliveries that wait for the schema they were written with.

Messages wait before they reach the consumer's queue, so that an ordered subscription stays ordered.
If a version cannot be fetched, its messages are delivered and only decoding their values fails.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Container

from ...errors import TopicNotFound
from ...eventloop.affinity import cancel
from ...values.topic_names import base_name
from ..interface import (
    Deliveries,
    Delivery,
    DeliveryListener,
    RetryNotice,
    TransportConsumer,
    each_delivery,
)
from .versioned_messages import SchemaVersions
from .writer_schemas import Version


class SchemaGate:
    """A `DeliveryListener` in front of the consumer's or reader's.

    Args:
        durable: False for a reader. Its messages stay after a loss, because they are not
            redelivered.
    """

    def __init__(
        self,
        consumer: TransportConsumer,
        versions: SchemaVersions,
        listener: DeliveryListener,
        *,
        durable: bool,
    ) -> None:
        self._consumer = consumer
        self._versions = versions
        self._listener = listener
        self._durable = durable
        self._waiting: deque[tuple[Version | None, Delivery]] = deque()
        self._fetching: asyncio.Task[None] | None = None
        # These calls do not concern waiting messages.
        self.on_connected = listener.on_connected
        self.on_uncertain = listener.on_uncertain
        self.on_all_requested = listener.on_all_requested
        self.on_end_of_topic = listener.on_end_of_topic
        self.on_active_changed = listener.on_active_changed
        self.on_new_topic = listener.on_new_topic
        self.on_removed = listener.on_removed
        self.on_skipped = listener.on_skipped
        self.on_failed = listener.on_failed

    def on_deliveries(self, deliveries: Deliveries) -> None:
        for each in each_delivery(deliveries):
            topic, _ = self._consumer.topic_of(each.topic_number)
            version, each.messages = self._versions.view(topic, each.messages)
            self._waiting.append((version, each))
        if self._fetching is None:
            self._deliver_ready()

    def _deliver_ready(self) -> None:
        """Deliver messages up to the first without its version, and fetch that version."""
        waiting, ready = self._waiting, []
        while waiting and not self._versions.lacks(waiting[0][0]):
            ready.append(waiting.popleft()[1])
        version = waiting[0][0] if waiting else None
        if version is not None:
            self._fetching = asyncio.create_task(self._fetch(version))
        if ready:
            self._listener.on_deliveries(ready)

    async def _fetch(self, version: Version) -> None:
        await self._versions.fetch(version)
        self._fetching = None
        self._deliver_ready()

    @property
    def holds(self) -> bool:
        return bool(self._waiting)

    def drop(self, topics: Container[int] | None = None) -> list[Delivery]:
        """Drop the waiting messages of these topics, or of all, and return them."""
        kept: deque[tuple[Version | None, Delivery]] = deque()
        dropped = []
        for version, delivery in self._waiting:
            if topics is None or delivery.topic_number in topics:
                dropped.append(delivery)
            else:
                kept.append((version, delivery))
        self._waiting = kept
        for delivery in dropped:
            self._consumer.consumed(delivery.topic_number, len(delivery.messages))
        return dropped

    def close(self) -> None:
        if self._fetching is not None:
            cancel(self._fetching)
        self._waiting.clear()

    def on_disconnected(self, topics: Container[int] | None = None) -> None:
        if self._durable:
            self.drop(topics)
        self._listener.on_disconnected(topics)

    def on_seek(self, topics: Container[int] | None = None) -> None:
        self.drop(topics)
        self._listener.on_seek(topics)

    def on_retrying(self, topic_number: int | None, notice: RetryNotice) -> None:
        if isinstance(notice.error, TopicNotFound):
            self._versions.deleted(base_name(notice.topic))
        self._listener.on_retrying(topic_number, notice)
