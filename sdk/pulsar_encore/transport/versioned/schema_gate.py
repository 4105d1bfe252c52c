"""A queue for deliveries that wait for the schema they were written with.

Messages wait before they reach the consumer's queue, so that an ordered subscription stays ordered.
If a version cannot be fetched, its messages are delivered and only decoding their values fails.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Container, Sequence

from ...errors import TopicNotFound
from ...eventloop.affinity import cancel
from ...values.topic_names import base_name
from ..interface import (
    Deliveries,
    Delivery,
    DeliveryListener,
    RetryNotice,
    SkippedEntry,
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

    def on_connected(self, topics: Container[int] | None = None) -> None:
        self._listener.on_connected(topics)

    def on_uncertain(self, topics: Container[int] | None = None) -> None:
        self._listener.on_uncertain(topics)

    def on_all_requested(
        self, unseen: Sequence[Delivery], topics: Container[int] | None = None
    ) -> None:
        self._listener.on_all_requested(unseen, topics)

    def on_end_of_topic(self, topic_number: int) -> None:
        self._listener.on_end_of_topic(topic_number)

    def on_active_changed(self, topic_number: int, active: bool) -> None:
        self._listener.on_active_changed(topic_number, active)

    def on_new_topic(self, topic_number: int) -> None:
        self._listener.on_new_topic(topic_number)

    def on_removed(self, topic_number: int) -> None:
        self._listener.on_removed(topic_number)

    def on_skipped(self, topic_number: int, entries: Sequence[SkippedEntry]) -> None:
        self._listener.on_skipped(topic_number, entries)

    def on_failed(self, error: Exception, topic_number: int | None = None) -> None:
        self._listener.on_failed(error, topic_number)
