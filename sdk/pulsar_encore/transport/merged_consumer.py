"""Several subscriptions as one: the input topics and the retry letter topic.

The retry letter topic is always subscribed as Shared
(`docs/notes/consumer-semantics.md#letter-topics`), so it has its own subscription. `MergedConsumer`
renumbers the sources of all parts, so that the consumer sees a single `TransportConsumer`.
Positions refer to the first part, the main one.
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
    TransportConsumer,
)

_MAX_LEDGERS: Final = 10_000  # 50,000 entries each; the least recently used is forgotten first


class _MergedSources:
    """The merged numbers of one part's sources: all of them, or those in `only`."""

    def __init__(self, part: int, parts: int, only: Container[int] | None) -> None:
        self._part = part
        self._parts = parts
        self._only = only

    def __contains__(self, source: object) -> bool:
        if not isinstance(source, int) or source % self._parts != self._part:
            return False
        return self._only is None or source // self._parts in self._only


class _PartListener:
    """Renumbers the reports of one part, and notes which ledgers it delivers."""

    def __init__(
        self, listener: DeliveryListener, part: int, parts: int, ledgers: dict[int, int]
    ) -> None:
        self._listener = listener
        self._part = part
        self._parts = parts
        self._ledgers = ledgers
        self._last_ledger = -1

    def on_deliveries(self, deliveries: Deliveries) -> None:
        for delivery in deliveries:
            delivery.source = delivery.source * self._parts + self._part
            if isinstance(delivery, PlainDeliveries):
                for ledger, _ in delivery.places:
                    self._note_ledger(ledger, delivery.source)
            else:
                self._note_ledger(delivery.ledger, delivery.source)
        self._listener.on_deliveries(deliveries)

    def _note_ledger(self, ledger: int, source: int) -> None:
        if ledger != self._last_ledger:
            self._last_ledger = ledger
            self._ledgers.pop(ledger, None)
            self._ledgers[ledger] = source
            if len(self._ledgers) > _MAX_LEDGERS:
                del self._ledgers[next(iter(self._ledgers))]

    def on_connected(self, only: Container[int] | None = None) -> None:
        self._listener.on_connected(_MergedSources(self._part, self._parts, only))

    def on_disconnected(self, only: Container[int] | None = None) -> None:
        self._listener.on_disconnected(_MergedSources(self._part, self._parts, only))

    def on_uncertain(self, only: Container[int] | None = None) -> None:
        self._listener.on_uncertain(_MergedSources(self._part, self._parts, only))

    def on_all_requested(
        self, unseen: Sequence[Delivery], only: Container[int] | None = None
    ) -> None:
        for delivery in unseen:
            delivery.source = delivery.source * self._parts + self._part
        self._listener.on_all_requested(unseen, _MergedSources(self._part, self._parts, only))

    def on_seek(self, only: Container[int] | None = None) -> None:
        self._listener.on_seek(_MergedSources(self._part, self._parts, only))

    def on_end_of_topic(self, source: int) -> None:
        self._listener.on_end_of_topic(source * self._parts + self._part)

    def on_active_changed(self, source: int, active: bool) -> None:
        self._listener.on_active_changed(source * self._parts + self._part, active)

    def on_new_source(self, source: int) -> None:
        self._listener.on_new_source(source * self._parts + self._part)

    def on_removed(self, source: int) -> None:
        self._listener.on_removed(source * self._parts + self._part)

    def on_skipped(self, source: int, entries: Sequence[SkippedEntry]) -> None:
        self._listener.on_skipped(source * self._parts + self._part, entries)

    def on_retrying(self, source: int | None, notice: RetryNotice) -> None:
        self._listener.on_retrying(self._merged(source), notice)

    def on_failed(self, error: Exception, source: int | None = None) -> None:
        self._listener.on_failed(error, self._merged(source))

    def _merged(self, source: int | None) -> int | None:
        return None if source is None else source * self._parts + self._part


class MergedConsumer:
    """A `TransportConsumer` over `parts` of the same transport; the first is the main one."""

    def __init__(self, *parts: TransportConsumer) -> None:
        self._parts = parts
        self._ledgers: dict[int, int] = {}  # a ledger belongs to exactly one topic
        self.capabilities: Capabilities = replace(parts[0].capabilities)

    def _part(self, source: int) -> tuple[TransportConsumer, int]:
        number, part = divmod(source, len(self._parts))
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

    def topic_of(self, source: int) -> tuple[str, int]:
        part, number = self._part(source)
        return part.topic_of(number)

    def sources(self) -> list[int]:
        return [
            source * len(self._parts) + at
            for at, part in enumerate(self._parts)
            for source in part.sources()
        ]

    def source_of(self, topic: str, partition: int, ledger: int = -1) -> int | None:
        if not topic:
            # Any part may have delivered it.
            return self._ledgers.get(ledger)
        for at, part in enumerate(self._parts):
            source = part.source_of(topic, partition)
            if source is not None:
                return source * len(self._parts) + at
        return None

    def start(self, listener: DeliveryListener) -> None:
        for at, part in enumerate(self._parts):
            part.start(_PartListener(listener, at, len(self._parts), self._ledgers))

    def consumed(self, source: int, messages: int) -> None:
        part, number = self._part(source)
        part.consumed(number, messages)

    def wanted(self, messages: int) -> None:
        self._parts[0].wanted(messages)  # with a queue of 0 there is no retry letter topic

    def stop_flow(self) -> None:
        for part in self._parts:
            part.stop_flow()

    def can_ack(self, source: int) -> bool:
        part, number = self._part(source)
        return part.can_ack(number)

    def ack(self, plan: AckPlan) -> Awaitable[None] | None:
        part, number = self._part(plan.source)
        return part.ack(replace(plan, source=number))

    def redeliver(self, source: int, groups: Sequence[tuple[int, Sequence[int]]]) -> None:
        part, number = self._part(source)
        part.redeliver(number, groups)

    def redeliver_all(self, source: int | None = None) -> None:
        if source is None:
            for each in self._parts:
                each.redeliver_all(None)
            return
        part, number = self._part(source)
        part.redeliver_all(number)

    async def seek(self, position: MessageId | int) -> None:
        """Seek by time in all parts; by id in the main part only, because its topics have the
        id."""
        await self._parts[0].seek(position)
        if isinstance(position, int):
            for part in self._parts[1:]:
                await part.seek(position)

    async def last_message_id(self) -> MessageId:
        return await self._parts[0].last_message_id()

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
