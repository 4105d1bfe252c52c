"""Several subscriptions as one: the input topics and the retry letter topic.

The retry letter topic is always subscribed as Shared
(`docs/notes/consumer-semantics.md#letter-topics`), so it has its own subscription.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Container, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from ..values.message_id import MessageId
from .interface import (
    AckPlan,
    Capabilities,
    Deliveries,
    Delivery,
    DeliveryListener,
    PlainDeliveries,
    RetryNotice,
    SkippedEntry,
    TopicEnds,
    TransportConsumer,
    TransportTransaction,
)

_MAX_LEDGERS: Final = 10_000  # 50,000 entries each; the least recently used is forgotten first


class _MergedTopics:
    """The merged numbers of one part's topics: all of them, or those in `topics`."""

    def __init__(self, part: int, parts: int, topics: Container[int] | None) -> None:
        self._part = part
        self._parts = parts
        self._only = topics

    def __contains__(self, topic_number: object) -> bool:
        if not isinstance(topic_number, int) or topic_number % self._parts != self._part:
            return False
        return self._only is None or topic_number // self._parts in self._only


class _PartListener:
    """Renumbers the topics in the calls of one part, and notes which ledgers it delivers."""

    def __init__(
        self, listener: DeliveryListener, part: int, parts: int, ledgers: dict[int, int]
    ) -> None:
        self._listener = listener
        self._part = part
        self._parts = parts
        self._ledgers = ledgers
        self._last_ledger = -1

    def _merged(self, topic_number: int) -> int:
        return topic_number * self._parts + self._part

    def _merged_topics(self, topics: Container[int] | None) -> _MergedTopics:
        return _MergedTopics(self._part, self._parts, topics)

    def on_deliveries(self, deliveries: Deliveries) -> None:
        for delivery in deliveries:
            delivery.topic_number = delivery.topic_number * self._parts + self._part
            if isinstance(delivery, PlainDeliveries):
                for ledger, _ in delivery.positions:
                    self._note_ledger(ledger, delivery.topic_number)
            else:
                self._note_ledger(delivery.ledger, delivery.topic_number)
        self._listener.on_deliveries(deliveries)

    def _note_ledger(self, ledger: int, topic_number: int) -> None:
        if ledger != self._last_ledger:
            self._last_ledger = ledger
            self._ledgers.pop(ledger, None)
            self._ledgers[ledger] = topic_number
            if len(self._ledgers) > _MAX_LEDGERS:
                del self._ledgers[next(iter(self._ledgers))]

    def on_connected(self, topics: Container[int] | None = None) -> None:
        self._listener.on_connected(self._merged_topics(topics))

    def on_disconnected(self, topics: Container[int] | None = None) -> None:
        self._listener.on_disconnected(self._merged_topics(topics))

    def on_uncertain(self, topics: Container[int] | None = None) -> None:
        self._listener.on_uncertain(self._merged_topics(topics))

    def on_all_requested(
        self, unseen: Sequence[Delivery], topics: Container[int] | None = None
    ) -> None:
        for delivery in unseen:
            delivery.topic_number = self._merged(delivery.topic_number)
        self._listener.on_all_requested(unseen, self._merged_topics(topics))

    def on_seek(self, topics: Container[int] | None = None) -> None:
        self._listener.on_seek(self._merged_topics(topics))

    def on_end_of_topic(self, topic_number: int) -> None:
        self._listener.on_end_of_topic(self._merged(topic_number))

    def on_active_changed(self, topic_number: int, active: bool) -> None:
        self._listener.on_active_changed(self._merged(topic_number), active)

    def on_new_topic(self, topic_number: int) -> None:
        self._listener.on_new_topic(self._merged(topic_number))

    def on_removed(self, topic_number: int) -> None:
        self._listener.on_removed(self._merged(topic_number))

    def on_skipped(self, topic_number: int, entries: Sequence[SkippedEntry]) -> None:
        self._listener.on_skipped(self._merged(topic_number), entries)

    def on_retrying(self, topic_number: int | None, notice: RetryNotice) -> None:
        self._listener.on_retrying(
            None if topic_number is None else self._merged(topic_number), notice
        )

    def on_failed(self, error: Exception, topic_number: int | None = None) -> None:
        self._listener.on_failed(
            error, None if topic_number is None else self._merged(topic_number)
        )


class MergedConsumer:
    """A `TransportConsumer` over `parts` of the same transport.

    The first part is the main one: positions are those of its topics.
    """

    def __init__(self, *parts: TransportConsumer) -> None:
        self._parts = parts
        self._ledgers: dict[int, int] = {}  # a ledger belongs to exactly one topic
        self.capabilities: Capabilities = parts[0].capabilities

    def _part(self, topic_number: int) -> tuple[TransportConsumer, int]:
        number, part = divmod(topic_number, len(self._parts))
        return self._parts[part], number

    @property
    def topic(self) -> str:
        return self._parts[0].topic

    @property
    def subscription_name(self) -> str:
        return self._parts[0].subscription_name

    @property
    def consumer_name(self) -> str:
        return self._parts[0].consumer_name

    def is_connected(self) -> bool:
        return all(part.is_connected() for part in self._parts)

    def topic_of(self, topic_number: int) -> tuple[str, int]:
        part, number = self._part(topic_number)
        return part.topic_of(number)

    def topic_numbers(self) -> list[int]:
        return [
            topic_number * len(self._parts) + at
            for at, part in enumerate(self._parts)
            for topic_number in part.topic_numbers()
        ]

    def topic_number_of(self, topic: str, partition: int, ledger: int = -1) -> int | None:
        if not topic:
            return self._ledgers.get(ledger)
        for at, part in enumerate(self._parts):
            topic_number = part.topic_number_of(topic, partition)
            if topic_number is not None:
                return topic_number * len(self._parts) + at
        return None

    def start(self, listener: DeliveryListener) -> None:
        for at, part in enumerate(self._parts):
            part.start(_PartListener(listener, at, len(self._parts), self._ledgers))

    def consumed(self, topic_number: int, messages: int) -> None:
        part, number = self._part(topic_number)
        part.consumed(number, messages)

    def request_messages(self, messages: int) -> None:
        self._parts[0].request_messages(messages)  # a queue of 0 excludes a retry letter topic

    def stop_flow(self) -> None:
        for part in self._parts:
            part.stop_flow()

    def can_ack(self, topic_number: int) -> bool:
        part, number = self._part(topic_number)
        return part.can_ack(number)

    def ack(self, plan: AckPlan) -> Awaitable[None] | None:
        part, number = self._part(plan.topic_number)
        return part.ack(replace(plan, topic_number=number))

    def ack_in_transaction(self, plan: AckPlan, txn: TransportTransaction) -> asyncio.Future[None]:
        part, number = self._part(plan.topic_number)
        return part.ack_in_transaction(replace(plan, topic_number=number), txn)

    def redeliver(self, topic_number: int, groups: Sequence[tuple[int, Sequence[int]]]) -> None:
        part, number = self._part(topic_number)
        part.redeliver(number, groups)

    def redeliver_all(self, topic_number: int | None = None) -> None:
        if topic_number is None:
            for each in self._parts:
                each.redeliver_all(None)
            return
        part, number = self._part(topic_number)
        part.redeliver_all(number)

    async def seek(self, position: MessageId | int) -> None:
        """Seek by time in all parts, by id in the main part."""
        await self._parts[0].seek(position)
        if isinstance(position, int):
            for part in self._parts[1:]:
                await part.seek(position)

    async def last_message_id(self) -> MessageId:
        return await self._parts[0].last_message_id()

    async def ends_of(self, topic_number: int) -> TopicEnds | None:
        part, number = self._part(topic_number)
        return await part.ends_of(number)

    async def acked_position(self) -> MessageId | None:
        return await self._parts[0].acked_position()

    async def has_message_available(self) -> bool:
        return await self._parts[0].has_message_available()  # raises: the subscription is durable

    async def unsubscribe(self) -> None:
        await self._run_all(part.unsubscribe() for part in self._parts)

    async def close(self) -> None:
        await self._run_all(part.close() for part in self._parts)

    @staticmethod
    async def _run_all(calls: Iterable[Coroutine[Any, Any, None]]) -> None:
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
