"""A consumer of one or many topics: the `TransportConsumer` of the native transport.

Each topic or partition has a `TopicConsumer`. `TopicDiscovery` finds topics and partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from ....errors import ClosedError, NotSupportedError, OperationNotSupported, TopicNotFound
from ....eventloop.affinity import end_all, running_loop
from ....eventloop.close_once import CloseOnce
from ....options import Subscription
from ....values.message_id import MessageId
from ....values.topic_names import full_name
from ...interface import (
    AckPlan,
    Capabilities,
    DeliveryListener,
    RetryNotice,
    ShutDownError,
    TopicEnds,
    TransportTransaction,
)
from ..connection.retry_log import RetryLog
from ..lookup.lookup import Lookup
from .decryption import Decryption
from .memory_budget import MemoryBudget
from .subscribe_commands import SubscribeCommands
from .topic_consumer import TopicConsumer, TopicSnapshot
from .topic_discovery import TopicDiscovery, error_of
from .topic_events import TopicEvents

LOG_NAME: Final = "pulsar_encore.consumer"

NATIVE: Final = Capabilities(name="native")

#: Most bytes of a consumer's messages that are on their way or not yet taken.
MOST_BYTES: Final = 64 * 1024 * 1024
_AT_ONCE: Final = 50  # topics that subscribe at a time


class ConsumerSnapshot(NamedTuple):
    """The state of a `NativeConsumer` at one moment, for tests and debugging.

    Attributes:
        present: The names of the topics that exist.
        remembered: Number of topic names that are remembered.
        decompressed_bytes: Bytes of decompressed payloads that the application has not taken.
    """

    topics: tuple[TopicSnapshot, ...]
    present: tuple[str, ...]
    remembered: int
    decompressed_bytes: int


class NativeConsumer:
    """The consumer of one subscription (`TransportConsumer`).

    Args:
        ids: Consumer ids of the client.
        gone: Called with this consumer when it has closed.

    Attributes:
        topic_consumers: The consumers of the topics by number, deleted topics included.
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
        pattern = subscription.pattern
        self.topic: str = full_name(subscription.topics[0]) if pattern is None else pattern
        self.subscription_name: str = subscription.subscription_name
        self.consumer_name: str = consumer_name
        self._ids = ids
        self._gone = gone
        logger_of = lookup.pool.settings.logger_of
        self._log = logger_of(LOG_NAME)
        self.retry_log: RetryLog = RetryLog(_name_of(subscription), logger_of)
        self._subscribe_commands = SubscribeCommands(subscription, consumer_name)
        self._decryption = Decryption(subscription)
        self._budget = MemoryBudget(MOST_BYTES)
        self.topic_consumers: list[TopicConsumer] = []
        self.by_topic: dict[str, int] = {}
        self._deleted: set[int] = set()  # numbers of deleted topics
        self._discovery = TopicDiscovery(
            self, lookup, subscription, creates=self._subscribe_commands.creates
        )
        self._events = TopicEvents(self.retry_log, self._on_missing, self._on_ended)
        self._flow_stopped = False
        self.is_closed: bool = False
        self._close_once = CloseOnce(self._close)

    async def open(self) -> None:
        """Subscribe to all topics, or to none if one fails."""
        try:
            await self._open_all(await self._discovery.first_topics())
        except BaseException:
            await self.close()
            raise
        self._discovery.start()

    async def _open_all(self, topics: Sequence[tuple[str, int]]) -> None:
        limit = asyncio.Semaphore(_AT_ONCE)
        self._check_queue(len(topics))
        opening = [self._new_topic(topic, partition, len(topics)) for topic, partition in topics]

        async def open_one(consumer: TopicConsumer) -> None:
            async with limit:
                await consumer.attachment.first()

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(error_of(open_one(consumer))) for consumer in opening]
        for consumer, task in zip(opening, tasks, strict=True):
            error = task.result()
            if isinstance(error, TopicNotFound) and self._subscription.pattern is not None:
                self._drop(consumer)  # deleted since it was found
            elif error is not None:
                raise error

    def _check_queue(self, topics: int) -> None:
        """Without a receiver queue, raise OperationNotSupported unless there is one named topic."""
        if not self._subscription.receiver_queue_size and (
            topics != 1 or self._subscription.pattern is not None
        ):
            raise OperationNotSupported(
                "receiver_queue_size=0 is for one topic without partitions: give it 1 or more"
            )

    def _new_topic(
        self,
        topic: str,
        partition: int,
        topics: int,
        *,
        is_new: bool = False,
        creates: bool = True,
    ) -> TopicConsumer:
        """Make a topic consumer with the next number, which is not attached yet.

        Args:
            topics: Number of topics that share the receiver queue.
        """
        consumer = TopicConsumer(
            len(self.topic_consumers),
            topic,
            partition,
            self._lookup,
            self._subscribe_commands,
            self._ids,
            self._events,
            self._decryption,
            self._share(topics),
            max(1, MOST_BYTES // topics),
            self._budget,
            is_new=is_new,
            creates=creates,
        )
        self.topic_consumers.append(consumer)
        self.by_topic[topic] = consumer.number
        return consumer

    def _share(self, topics: int) -> int:
        """Return the receiver queue size of each topic."""
        chosen = self._subscription
        total = chosen.max_total_receiver_queue_size_across_partitions
        return min(chosen.receiver_queue_size, max(1, total // max(1, topics)))

    # `TopicOwner`, called by the discovery of topics

    @property
    def present(self) -> Sequence[TopicConsumer]:
        return [each for each in self.topic_consumers if each.number not in self._deleted]

    def new_topic(self, topic: str, partition: int, *, creates: bool) -> TopicConsumer:
        topics = len(self.present) + 1
        self._check_queue(topics)
        return self._new_topic(topic, partition, topics, is_new=True, creates=creates)

    def started(self, consumer: TopicConsumer) -> None:
        if self._events.listener is not None:
            self._events.listener.on_new_topic(consumer.number)
            self._events.announce(len(self.topic_consumers))
            self._start_topic(consumer)

    def refused(self, consumer: TopicConsumer) -> None:
        consumer.abandon()
        del self.by_topic[consumer.topic]
        self.topic_consumers.pop()

    def report(self, notice: RetryNotice) -> None:
        if self._events.listener is not None:
            self._events.listener.on_retrying(None, notice)

    def removed(self, consumer: TopicConsumer) -> None:
        self._drop(consumer)
        if consumer.number < self._events.known:
            if self._subscription.durable:
                # As after a seek, there is nothing to ack, and nothing is redelivered.
                self._events.on_seek(consumer.number)
            if self._events.listener is not None:
                self._events.listener.on_removed(consumer.number)

    def _on_missing(self, topic_number: int) -> None:
        if not self.is_closed and topic_number not in self._deleted:
            self._discovery.missing(self.topic_consumers[topic_number])

    def _on_ended(self, topic_number: int, error: Exception) -> None:
        self._discovery.cancel()
        text = "%s: the subscription %s has ended for good: %s"
        self._log.error(
            text, self.topic_consumers[topic_number].topic, self.subscription_name, error
        )

    def _drop(self, consumer: TopicConsumer) -> None:
        self._deleted.add(consumer.number)
        self.by_topic.pop(consumer.topic, None)
        consumer.abandon()

    def snapshot(self) -> ConsumerSnapshot:
        topics = tuple(each.snapshot() for each in self.topic_consumers)
        present = tuple(each.topic for each in self.present)
        remembered = len(self.by_topic) + self._discovery.remembered
        return ConsumerSnapshot(topics, present, remembered, self._budget.used)

    # `TransportConsumer`, called by the consumer

    def is_connected(self) -> bool:
        if self.is_closed or not self._discovery.is_complete:
            return False
        return all(consumer.is_attached for consumer in self.present)

    def topic_of(self, topic_number: int) -> tuple[str, int]:
        found = self.topic_consumers[topic_number]
        return found.topic, found.partition

    def topic_numbers(self) -> range:
        return range(len(self.topic_consumers))

    def topic_number_of(self, topic: str, partition: int, ledger: int = -1) -> int | None:
        if topic:
            name = full_name(topic)
            found = self.by_topic.get(name)
            if found is None and partition >= 0:
                found = self.by_topic.get(f"{name}-partition-{partition}")
            return found
        fitting = [
            each.number for each in self.topic_consumers if partition in (-1, each.partition)
        ]
        return fitting[0] if len(fitting) == 1 else None

    def start(self, listener: DeliveryListener) -> None:
        if self._events.start(listener, len(self.topic_consumers)):
            for consumer in list(self.topic_consumers):
                self._start_topic(consumer)

    def _start_topic(self, consumer: TopicConsumer) -> None:
        consumer.permits.stopped = self._flow_stopped
        consumer.start()

    def consumed(self, topic_number: int, messages: int) -> None:
        self.topic_consumers[topic_number].consumed(messages)

    def request_messages(self, messages: int) -> None:
        for consumer in self.present:  # one: see `_check_queue`
            consumer.request_messages(messages)

    def stop_flow(self) -> None:
        self._flow_stopped = True
        for consumer in self.topic_consumers:
            consumer.permits.stopped = True

    def can_ack(self, topic_number: int) -> bool:
        return self.topic_consumers[topic_number].can_ack

    def ack(self, plan: AckPlan) -> asyncio.Future[Any]:
        answers = self.topic_consumers[plan.topic_number].ack(plan)
        return answers[0] if len(answers) == 1 else asyncio.gather(*answers)

    def ack_in_transaction(self, plan: AckPlan, txn: TransportTransaction) -> asyncio.Future[None]:
        return self.topic_consumers[plan.topic_number].transaction_acks.ack(plan, txn)

    def redeliver(self, topic_number: int, groups: Sequence[tuple[int, Sequence[int]]]) -> None:
        if not self._subscription.shared:
            raise NotSupportedError("only Shared and Key_Shared redeliver single entries")
        ids = [(ledger, entry) for ledger, entries in groups for entry in entries]
        if ids:  # a command without ids would ask for everything
            self.topic_consumers[topic_number].redelivery.request_entries(ids)

    def redeliver_all(self, topic_number: int | None = None) -> None:
        consumers = self.topic_consumers
        for each in consumers if topic_number is None else [consumers[topic_number]]:
            each.redelivery.request_all()

    async def seek(self, position: MessageId | int) -> None:
        self._check_open()
        consumers = self.present
        ends = (MessageId.earliest, MessageId.latest)  # of every topic
        if isinstance(position, MessageId) and len(consumers) > 1 and position not in ends:
            found = self.topic_number_of(position.topic, position.partition())
            if found is None:
                raise OperationNotSupported(
                    "seek by message id needs an id that says which topic or partition it is of"
                )
            consumers = [self.topic_consumers[found]]
        await _all(consumer.seek.to(position) for consumer in consumers)

    async def last_message_id(self) -> MessageId:
        self._check_open()
        consumers = self.present
        if len(consumers) != 1:
            raise OperationNotSupported(
                "the last message id is one topic's; this consumer has several"
            )
        return await consumers[0].queries.last_message_id()

    async def ends_of(self, topic_number: int) -> TopicEnds | None:
        self._check_open()
        return await self.topic_consumers[topic_number].queries.ends()

    async def acked_position(self) -> MessageId | None:
        self._check_open()
        return await (self.present or self.topic_consumers)[0].queries.acked_position()

    async def has_message_available(self) -> bool:
        self._check_open()
        for consumer in self.present:
            if await consumer.queries.has_message_available():
                return True
        return False

    async def unsubscribe(self) -> None:
        self._check_open()
        await _all(consumer.unsubscribe() for consumer in self.present)
        await self.close()

    async def close(self) -> None:
        await self._close_once()

    async def _close(self) -> None:
        if self._lookup.pool.loop.is_closed():
            self.abandon()
            self._gone(self)
            return
        self.is_closed = True
        try:
            await self._discovery.stop()
            await _all(consumer.close() for consumer in self.topic_consumers)
        finally:
            self._gone(self)

    def abandon(self) -> None:
        """Drop everything at once. Calls that wait for messages or receipts fail."""
        was_closed, self.is_closed = self.is_closed, True
        loop = self._lookup.pool.loop
        self._discovery.cancel()
        end_all(loop, *(each.abandon for each in self.topic_consumers), self._discovery.abandon)
        elsewhere = loop.is_running() and loop is not running_loop()
        listener = self._events.listener
        if listener is not None and not (was_closed or elsewhere or loop.is_closed()):
            listener.on_failed(
                ShutDownError(
                    "the client was shut down, or its event loop ends: close the consumer before, "
                    "and subscribe again"
                )
            )

    def _check_open(self) -> None:
        if self.is_closed:
            raise ClosedError("the consumer is closed: subscribe again")


def _name_of(subscription: Subscription) -> str:
    if subscription.pattern is not None:
        where = f"the pattern {subscription.pattern}"
    else:
        first, others = full_name(subscription.topics[0]), len(subscription.topics) - 1
        where = f"{first} and {others} more" if others else first
    if not subscription.durable:
        return f"reader on {where}"
    return f"consumer of subscription {subscription.subscription_name!r} on {where}"


async def _all(calls: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all calls to their end, then raise the first error."""
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
