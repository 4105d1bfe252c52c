"""A subscription of one or many topics: the `ConsumerLink` of the native transport.

Owns `NativeConsumer`: the numbering of its sources, and what concerns all of them. Partitions and
topics that appear while it runs are subscribed as they are found. A named topic that is deleted is
waited for: if it comes back with other partitions, the sources of those that are gone leave, and
the new ones are subscribed. The topics of a pattern leave when they are deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ....closing import CloseOnce
from ....errors import ClosedError, NotSupportedError
from ....exceptions import OperationNotSupported, TopicNotFound
from ....ids import MessageId
from ....loops import end_all, running_loop
from ....options import Subscription
from ....topic_names import full_name
from ...base import (
    AckPlan,
    Capabilities,
    Deliveries,
    Delivery,
    NoDelivery,
    RetryNotice,
    ShutDownError,
    Sink,
)
from ..connection.retry_log import RetryLog
from ..lookup.lookup import Lookup
from .decryption import Decryption
from .memory_budget import MemoryBudget
from .subscribe_commands import SubscribeCommands
from .topic_consumer import TopicConsumer, TopicSnapshot
from .topic_discovery import TopicDiscovery, caught

log: Final = logging.getLogger("pulsar_encore.consumer")

NATIVE: Final = Capabilities(name="native")

#: Bytes that one consumer's messages may have, on their way and not yet consumed.
MOST_BYTES: Final = 64 * 1024 * 1024
_AT_ONCE: Final = 50  # sources that subscribe at a time


class ConsumerSnapshot(NamedTuple):
    """The state of a `NativeConsumer` at one moment, for tests and debugging.

    Attributes:
        topics: The state of each topic, by its number.
        present: The names of the topics that exist.
        remembered: How many names of topics are remembered in all.
        decompressed_bytes: Bytes of decompressed payloads that the application has not taken.
    """

    topics: tuple[TopicSnapshot, ...]
    present: tuple[str, ...]
    remembered: int
    decompressed_bytes: int


class NativeConsumer:
    """One subscription (`ConsumerLink`).

    Args:
        lookup: Where topics are.
        subscription: What was asked for.
        consumer_name: At the broker.
        ids: Consumer ids of the client.
        gone: Called with it when it has closed.
    """

    capabilities = NATIVE

    def __init__(
        self,
        lookup: Lookup,
        subscription: Subscription,
        consumer_name: str,
        ids: Iterator[int],
        gone: Callable[[NativeConsumer], None],
    ) -> None:
        self._lookup = lookup
        self._subscription = subscription
        self._consumer_name = consumer_name
        self._ids = ids
        self._gone = gone
        self.retry_log: RetryLog = RetryLog(_name_of(subscription))
        self._subscribe_commands = SubscribeCommands(subscription, consumer_name)
        self._decryption = Decryption(subscription)
        self._budget = MemoryBudget(MOST_BYTES)
        self._sources: list[TopicConsumer] = []
        self._by_topic: dict[str, int] = {}
        self._deleted: set[int] = set()  # sources whose topic is no more
        self._discovery = TopicDiscovery(
            self, lookup, subscription, creates=self._subscribe_commands.creates
        )
        self._sink: Sink | None = None
        self._announced = 0  # sources that the sink has heard of
        self._early: list[tuple[int, bool | None]] = []  # notices from before it had
        self._flow_stopped = False
        self._closed = False
        self._failure: tuple[Exception, int] | None = None  # and the source that caused it
        self._close_once = CloseOnce(self._close)

    async def open(self) -> None:
        """Subscribe to all topics; none is subscribed when one fails.

        Raises:
            EncoreError: The first refusal.
        """
        try:
            await self._open_all(await self._discovery.first())
        except BaseException:
            await self.close()
            raise
        self._discovery.start()

    async def _open_all(self, topics: Sequence[tuple[str, int]]) -> None:
        limit = asyncio.Semaphore(_AT_ONCE)
        self._check_queue(len(topics))
        opening = [self._new_source(topic, partition, len(topics)) for topic, partition in topics]

        async def open_one(source: TopicConsumer) -> None:
            async with limit:
                await source.open()

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(caught(open_one(source))) for source in opening]
        for source, task in zip(opening, tasks, strict=True):
            error = task.result()
            if isinstance(error, TopicNotFound) and self._subscription.pattern is not None:
                self._drop(source)  # deleted since it was found
            elif error is not None:
                raise error

    def _check_queue(self, topics: int) -> None:
        """
        Raises:
            OperationNotSupported: Without a receiver queue there is one topic without partitions.
        """
        if not self._subscription.receiver_queue_size and (
            topics != 1 or self._subscription.pattern is not None
        ):
            raise OperationNotSupported(
                "receiver_queue_size=0 is for one topic without partitions: give it 1 or more"
            )

    def _new_source(
        self,
        topic: str,
        partition: int,
        sources: int,
        *,
        is_new: bool = False,
        creates: bool = True,
    ) -> TopicConsumer:
        """A source with the next number, which is not attached yet.

        Args:
            topic: Full name.
            partition: Its number, or -1.
            sources: How many share the receiver queue.
            is_new: The topic is newer than the consumer.
            creates: Whether subscribing may create the topic.
        """
        source = TopicConsumer(
            len(self._sources),
            topic,
            partition,
            self._lookup,
            self._subscribe_commands,
            self._ids,
            self,
            self._decryption,
            self._share(sources),
            max(1, MOST_BYTES // sources),
            self._budget,
            is_new=is_new,
            creates=creates,
        )
        self._sources.append(source)
        self._by_topic[topic] = source.number
        return source

    def _share(self, sources: int) -> int:
        """The receiver queue of each source."""
        chosen = self._subscription
        total = chosen.max_total_receiver_queue_size_across_partitions
        return min(chosen.receiver_queue_size, max(1, total // max(1, sources)))

    # What the discovery of topics asks (`TopicOwner`)

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def by_topic(self) -> Mapping[str, int]:
        return self._by_topic

    @property
    def present(self) -> Sequence[TopicConsumer]:
        return [each for each in self._sources if each.number not in self._deleted]

    def new_topic(self, topic: str, partition: int, *, creates: bool) -> TopicConsumer:
        topics = len(self.present) + 1
        self._check_queue(topics)
        return self._new_source(topic, partition, topics, is_new=True, creates=creates)

    def started(self, consumer: TopicConsumer) -> None:
        if self._sink is not None:
            self._sink.on_new_source(consumer.number)
            self._announce()
            self._start_topic(consumer)

    def refused(self, consumer: TopicConsumer) -> None:
        consumer.abandon()
        del self._by_topic[consumer.topic]
        self._sources.pop()

    def report(self, notice: RetryNotice) -> None:
        if self._sink is not None:
            self._sink.on_retrying(None, notice)

    def removed(self, source: TopicConsumer) -> None:
        self._drop(source)
        if source.number < self._announced:
            if self._subscription.durable:
                self.on_sought(source.number)  # there is nothing to ack, and nothing comes again
            if self._sink is not None:
                self._sink.on_removed(source.number)

    def _drop(self, source: TopicConsumer) -> None:
        self._deleted.add(source.number)
        self._by_topic.pop(source.topic, None)
        source.abandon()

    @property
    def topic_consumers(self) -> Sequence[TopicConsumer]:
        """The consumers of the topics by number, deleted topics included."""
        return self._sources

    def snapshot(self) -> ConsumerSnapshot:
        """Return a copy of the state, for tests and debugging."""
        topics = tuple(each.snapshot() for each in self._sources)
        present = tuple(each.topic for each in self.present)
        remembered = len(self._by_topic) + self._discovery.remembered
        return ConsumerSnapshot(topics, present, remembered, self._budget.used)

    # What the seam asks

    @property
    def topic(self) -> str:
        if self._subscription.pattern is not None:
            return self._subscription.pattern
        return full_name(self._subscription.topics[0])

    @property
    def subscription_name(self) -> str:
        return self._subscription.subscription_name

    @property
    def consumer_name(self) -> str:
        return self._consumer_name

    def is_connected(self) -> bool:
        if self._closed or not self._discovery.is_complete:
            return False
        return all(source.is_attached for source in self.present)

    def topic_of(self, source: int) -> tuple[str, int]:
        found = self._sources[source]
        return found.topic, found.partition

    def sources(self) -> range:
        return range(len(self._sources))

    def source_of(self, topic: str, partition: int, ledger: int = -1) -> int | None:
        if topic:
            name = full_name(topic)
            found = self._by_topic.get(name)
            if found is None and partition >= 0:
                found = self._by_topic.get(f"{name}-partition-{partition}")
            return found
        fitting = [source.number for source in self._sources if partition in (-1, source.partition)]
        return fitting[0] if len(fitting) == 1 else None

    def start(self, sink: Sink) -> None:
        self._sink = sink
        if self._failure is not None:
            sink.on_failed(*self._failure)
            return
        self._announce()
        for source in list(self._sources):
            self._start_topic(source)

    def _start_topic(self, source: TopicConsumer) -> None:
        source.permits.stopped = self._flow_stopped
        source.start()

    def consumed(self, source: int, messages: int) -> None:
        self._sources[source].consumed(messages)

    def wanted(self, messages: int) -> None:
        for source in self.present:  # one: see `_check_queue`
            source.wanted(messages)

    def stop_flow(self) -> None:
        self._flow_stopped = True
        for source in self._sources:
            source.permits.stopped = True

    def can_ack(self, source: int) -> bool:
        return self._sources[source].can_ack

    def ack(self, plan: AckPlan) -> asyncio.Future[Any]:
        answers = self._sources[plan.source].ack(plan)
        return answers[0] if len(answers) == 1 else asyncio.gather(*answers)

    def redeliver(self, source: int, groups: Sequence[tuple[int, Sequence[int]]]) -> None:
        if not self._subscription.shared:
            raise NotSupportedError("only Shared and Key_Shared redeliver single entries")
        ids = [(ledger, entry) for ledger, entries in groups for entry in entries]
        if ids:  # a command without ids would ask for everything
            self._sources[source].redeliver(ids)

    def redeliver_all(self, source: int | None = None) -> None:
        for each in self._sources if source is None else [self._sources[source]]:
            each.redeliver_all()

    async def seek(self, position: MessageId | int) -> None:
        self._check_open()
        sources = self.present
        if isinstance(position, MessageId) and len(sources) > 1:
            found = self.source_of(position.topic, position.partition())
            anywhere = position in (MessageId.earliest, MessageId.latest)
            if not anywhere and found is None:
                raise OperationNotSupported(
                    "seek by message id needs an id that says which topic or partition it is of"
                )
            if not anywhere and found is not None:
                sources = [self._sources[found]]
        await _all(source.seek(position) for source in sources)

    async def last_message_id(self) -> MessageId:
        self._check_open()
        sources = self.present
        if len(sources) != 1:
            raise OperationNotSupported(
                "the last message id is one topic's; this consumer has several"
            )
        return await sources[0].last_message_id()

    async def acked_position(self) -> MessageId | None:
        self._check_open()
        return await (self.present or self._sources)[0].acked_position()

    async def has_message_available(self) -> bool:
        self._check_open()
        for source in self.present:
            if await source.has_message_available():
                return True
        return False

    async def unsubscribe(self) -> None:
        self._check_open()
        await _all(source.unsubscribe() for source in self.present)
        await self.close()

    async def close(self) -> None:
        await self._close_once()

    async def _close(self) -> None:
        if self._lookup.pool.loop.is_closed():
            self.abandon()
            self._gone(self)
            return
        self._closed = True
        try:
            await self._discovery.stop()
            await _all(source.close() for source in self._sources)
        finally:
            self._gone(self)

    def abandon(self) -> None:
        """Drop everything at once; who waits for messages or receipts is told."""
        was_closed, self._closed = self._closed, True
        loop = self._lookup.pool.loop
        self._discovery.cancel()
        end_all(loop, *(source.abandon for source in self._sources), self._discovery.abandon)
        elsewhere = loop.is_running() and loop is not running_loop()
        if self._sink is not None and not (was_closed or elsewhere or loop.is_closed()):
            self._sink.on_failed(
                ShutDownError(
                    "the client was shut down, or its event loop ends: close the consumer before, "
                    "and subscribe again"
                )
            )

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the consumer is closed: subscribe again")

    # What the sources tell (`TopicListener`)

    def on_missing(self, source: int) -> None:
        if not self._closed and source not in self._deleted:
            self._discovery.missing(self._sources[source])

    def on_deliveries(self, deliveries: Deliveries) -> None:
        if self._sink is not None:
            self._sink.on_deliveries(deliveries)

    def on_connected(self, source: int) -> None:
        if self._sink is not None:
            self._sink.on_connected((source,))

    def on_disconnected(self, source: int) -> None:
        if self._sink is not None:
            self._sink.on_disconnected((source,))

    def on_sought(self, source: int) -> None:
        if self._sink is not None:
            self._sink.on_sought((source,))

    def on_retrying(self, source: int, notice: RetryNotice) -> None:
        if self._sink is not None and source < self._announced:
            self._sink.on_retrying(source, notice)

    def on_failed(self, source: int, error: Exception) -> None:
        if self._failure is not None:
            return
        self._failure = (error, source)
        self._discovery.cancel()
        text = "%s: the subscription %s has ended for good: %s"
        log.error(text, self._sources[source].topic, self.subscription_name, error)
        if self._sink is not None:
            self._sink.on_failed(error, source)

    def on_skipped(self, source: int, entries: Sequence[NoDelivery]) -> None:
        if self._sink is not None:
            self._sink.on_unread(source, entries)

    def on_all_requested(self, source: int, unseen: Sequence[Delivery]) -> None:
        if self._sink is not None:
            self._sink.on_asked_all(unseen, (source,))

    def on_end_of_topic(self, source: int) -> None:
        self._notice(source, None)

    def on_active_changed(self, source: int, active: bool) -> None:
        self._notice(source, active)

    def _notice(self, source: int, active: bool | None) -> None:
        """Whose turn it is, or the end of the topic (None); what the sink knows of only."""
        if self._sink is None or source >= self._announced:
            self._early.append((source, active))
        elif active is None:
            self._sink.on_end_of_topic(source)
        else:
            self._sink.on_active_changed(source, active)

    def _announce(self) -> None:
        """The sink knows of all sources now."""
        self._announced = len(self._sources)
        early, self._early = self._early, []
        for source, active in early:
            self._notice(source, active)


def _name_of(subscription: Subscription) -> str:
    """The consumer or reader as its log lines name it."""
    if subscription.pattern is not None:
        where = f"the pattern {subscription.pattern}"
    else:
        first, others = full_name(subscription.topics[0]), len(subscription.topics) - 1
        where = f"{first} and {others} more" if others else first
    if not subscription.durable:
        return f"reader on {where}"
    return f"consumer of subscription {subscription.subscription_name!r} on {where}"


async def _all(calls: Iterable[Coroutine[Any, Any, None]]) -> None:
    """All to their end, also beside one that fails; then its error."""
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
