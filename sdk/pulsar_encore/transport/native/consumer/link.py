"""A subscription of one or many topics: the `ConsumerLink` of the native transport.

Owns `NativeConsumer`: the numbering of its sources, and what concerns all of them. Partitions and
topics that appear while it runs are subscribed as they are found. A named topic that is deleted is
waited for: if it comes back with other partitions, the sources of those that are gone leave, and
the new ones are subscribed. The topics of a pattern leave when they are deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from ....backoff import FailureReports
from ....closing import CloseOnce
from ....errors import ClosedError, EncoreError, NotSupportedError
from ....exceptions import LookupError as TopicLookupError
from ....exceptions import OperationNotSupported, TopicNotFound
from ....ids import MessageId
from ....loops import cancel, end_all, running_loop
from ....options import Subscription
from ....process import in_background
from ....topic_names import base_name, full_name
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
from ..connection.backoff import Delays
from ..connection.retry_log import RetryLog
from ..lookup.binary import check_partitions
from ..lookup.lookup import Lookup
from ..lookup.shape import Shape
from ..lookup.watching import Watched
from .decryption import Decryption
from .memory_budget import MemoryBudget
from .subscribe_commands import SubscribeCommands
from .topic_consumer import TopicConsumer, TopicSnapshot

log: Final = logging.getLogger("pulsar_encore.consumer")

NATIVE: Final = Capabilities(name="native")

#: Bytes that one consumer's messages may have, on their way and not yet consumed.
MOST_BYTES: Final = 64 * 1024 * 1024
_AT_ONCE: Final = 50  # sources that subscribe at a time


class ConsumerSnapshot(NamedTuple):
    """The state of a `NativeConsumer` at one moment, for tests and debugging.

    Attributes:
        topics: The state of each topic, by its number.
        decompressed_bytes: Bytes of decompressed payloads that the application has not taken.
    """

    topics: tuple[TopicSnapshot, ...]
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
        self._refusals: dict[str, FailureReports] = {}  # of topics that were found later
        self._shapes: dict[str, Shape] = {}  # by the topic as it was named, or found
        # Of named topics and their partitions: the key in `_shapes`. See `_key_of`.
        self._base: dict[str, str] = {}
        self._missing: set[str] = set()  # topics that are looked for
        self._incomplete: set[str] = set()  # those with partitions that could not be subscribed
        self._recovering: asyncio.Task[None] | None = None  # that looks for them
        self._changing = asyncio.Lock()  # which sources there are
        self._watched = self._watch(subscription)
        self._round = lookup.make_round()
        self._sink: Sink | None = None
        self._announced = 0  # sources that the sink has heard of
        self._early: list[tuple[int, bool | None]] = []  # notices from before it had
        self._flow_stopped = False
        self._closed = False
        self._failure: tuple[Exception, int] | None = None  # and the source that caused it
        self._discovering: asyncio.Task[None] | None = None
        self._close_once = CloseOnce(self._close)

    async def open(self) -> None:
        """Subscribe to all topics; none is subscribed when one fails.

        Raises:
            EncoreError: The first refusal.
        """
        try:
            await self._open_all(await self._topics(create=self._subscribe_commands.creates))
        except BaseException:
            await self.close()
            raise
        self._discovering = in_background(self._lookup.pool.loop, self._discover())

    def _watch(self, subscription: Subscription) -> Watched | None:
        """What tells of the topics of a pattern, if it is one."""
        if subscription.pattern is None:
            return None
        return Watched(
            self._lookup,
            subscription.pattern,
            subscription.regex_subscription_mode,
            subscription.pattern_auto_discovery_period,
        )

    async def _topics(self, *, create: bool) -> list[tuple[str, int]]:
        """Full names of the topics and partitions there are now, with partition numbers.

        Args:
            create: Whether the brokers may create topics that are missing.
        """
        if self._watched is not None:
            return await self._parts(map(base_name, await self._watched.first()), create=False)
        return await self._parts(map(full_name, self._subscription.topics), create=create)

    async def _new_topics(self) -> list[tuple[str, int]]:
        """Wait for the next look, and return the topics that are new."""
        if self._watched is not None:
            names = await self._watched.changed()
            there = set(map(base_name, names))
            for topic in [each for each in self._refusals if base_name(each) not in there]:
                del self._refusals[topic]
            found = await self._parts(
                (base_name(name) for name in names if name not in self._by_topic), create=False
            )
        else:
            await self._round.next(self._lookup.pool.settings.discovery_s)
            try:
                found = await self._topics(create=False)
            except EncoreError:
                self._round.again()
                raise
        return [each for each in found if each[0] not in self._by_topic]

    async def _parts(self, topics: Iterable[str], *, create: bool) -> list[tuple[str, int]]:
        """Return full name and partition number of each topic and partition.

        Raises:
            TopicNotFound: At the first look at named topics. Later, missing topics are left out.
            LookupError: There are more partitions than the client accepts.
        """
        is_first = not self._sources and self._watched is None
        found: list[tuple[str, int]] = []
        total = len(self._by_topic)
        most = self._lookup.pool.settings.max_partitions
        for topic in dict.fromkeys(topics):
            if base_name(topic) != topic:
                count = 0
            else:
                try:
                    count = await self._lookup.partitions(topic, create=create)
                except TopicNotFound:
                    if is_first:
                        raise
                    continue  # deleted since it was found, or looked for by `_recover`
            shape = self._shapes.get(topic)
            if shape is None or not self._fits(shape, count):
                if shape is not None and self._sources_of(topic):
                    self._look_for(topic)  # some of its sources have to leave
                    continue
                shape = self._shapes[topic] = Shape(
                    self._lookup,
                    topic,
                    creates=self._subscribe_commands.creates,
                    partitions=count,
                    # A topic of a pattern is not waited for: see `_leave`.
                    name=None if self._watched is not None else self.retry_log.name,
                )
            check_partitions(count, topic, most)
            shape.partitions = count
            parts = shape.topics(count)
            total += sum(each not in self._by_topic for each, _ in parts)
            if total > most:
                raise TopicLookupError(
                    f"the topics of this consumer have {total} partitions together, and this "
                    f"client accepts at most {most}: raise the client's max_partitions, or "
                    "subscribe to fewer topics",
                    retryable=False,
                )
            if self._watched is None:
                self._base.update((each, topic) for each, _ in parts)
            found += parts
        return found

    def _key_of(self, topic: str) -> str:
        """The key in `_shapes` of a topic or partition that is read."""
        return self._base[topic] if self._watched is None else base_name(topic)

    def _fits(self, shape: Shape, count: int) -> bool:
        """True if a topic has the partitions that it had, and perhaps more."""
        return count == shape.partitions or 0 < shape.partitions < count

    def _sources_of(self, topic: str) -> list[TopicConsumer]:
        """The sources of a topic by its key in `_shapes`."""
        return [each for each in self._there if self._key_of(each.topic) == topic]

    async def _open_all(self, topics: Sequence[tuple[str, int]]) -> None:
        limit = asyncio.Semaphore(_AT_ONCE)
        self._check_queue(len(topics))
        opening = [self._new_source(topic, partition, len(topics)) for topic, partition in topics]

        async def open_one(source: TopicConsumer) -> None:
            async with limit:
                await source.open()

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_caught(open_one(source))) for source in opening]
        for source, task in zip(opening, tasks, strict=True):
            error = task.result()
            if isinstance(error, TopicNotFound) and self._watched is not None:
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

    async def _discover(self) -> None:
        """Subscribe to what is new, as it is found."""
        failed: FailureReports | None = None  # looks in a row
        while True:
            try:
                topics = await self._new_topics()
            except EncoreError as error:  # the next look may be answered
                failed = failed or FailureReports()
                # While the consumer is not connected, that is reported, and enough.
                if failed.failed(self._lookup.pool.loop.time()) and self.is_connected():
                    text = "%s: new topics and partitions cannot be looked for; retried: %s"
                    log.warning(text, self.topic, error)
                continue
            failed = None
            for topic, partition in topics:
                async with self._changing:
                    added = await self._add(topic, partition)
                if not added:
                    self._look_again()

    async def _add(self, topic: str, partition: int, *, creates: bool = False) -> bool:
        """Subscribe to one more. Return False if the broker refused; the source is discarded then.

        Args:
            topic: Full name.
            partition: Its number, or -1.
            creates: Whether subscribing may create the topic.
        """
        if self._closed or topic in self._by_topic:
            return True
        sources = len(self._there) + 1
        try:
            self._check_queue(sources)
            source = self._new_source(topic, partition, sources, is_new=True, creates=creates)
        except EncoreError as error:
            log.error("%s cannot be read: %s", topic, error)
            return False
        refused = await _caught(source.open())
        if refused is not None:
            self._report_refusal(topic, refused)
            source.abandon()
            del self._by_topic[topic]
            self._sources.pop()
            return False
        self._refusals.pop(topic, None)
        if self._sink is not None:
            self._sink.on_new_source(source.number)
            self._announce()
            self._started(source)
        return True

    def _report_refusal(self, topic: str, error: EncoreError) -> None:
        """Report that a topic that was found cannot be subscribed to: at once, then more rarely.

        Otherwise nobody would know why the messages of a new partition do not arrive.
        """
        if isinstance(error, TopicNotFound):  # deleted since it was found
            log.info("%s: not subscribed to: %s", topic, error)
            self._refusals.pop(topic, None)
            return
        now_s = self._lookup.pool.loop.time()
        reports = self._refusals.setdefault(topic, FailureReports())
        if not reports.failed(now_s):
            return
        log.warning("%s: not subscribed to, and retried: %s", topic, error)
        if self._sink is not None:
            elapsed_s = reports.elapsed_s(now_s)
            self._sink.on_retrying(None, RetryNotice(topic, error, reports.attempts, elapsed_s))

    def _look_again(self) -> None:
        """There is something that was not subscribed to."""
        if self._watched is not None:
            self._watched.look_again()
        else:
            self._round.again()

    # Topics that are gone, and come back

    def on_missing(self, source: int) -> None:
        """The broker does not know a source's topic: it is deleted, or has other partitions now."""
        if self._closed or source in self._deleted:
            return
        self._look_for(self._key_of(self._sources[source].topic))

    def _look_for(self, topic: str) -> None:
        self._missing.add(topic)
        if self._recovering is None or self._recovering.done():
            self._recovering = in_background(self._lookup.pool.loop, self._recover())

    async def _recover(self) -> None:
        """Look for topics that are gone until they are there, and read the partitions they have."""
        settings = self._lookup.pool.settings
        delays = Delays(settings.backoff_s, settings.max_backoff_s, self._lookup.pool.rng)
        while self._missing:  # see `failed` for the other end
            delay_s = delays.next()
            for topic in list(self._missing):
                shape = self._shapes.get(topic)
                if shape is None:  # the topic of a pattern was removed, and found again since
                    shape = self._shapes[topic] = Shape(
                        self._lookup, topic, creates=self._subscribe_commands.creates
                    )
                try:
                    await self._recover_topic(shape)
                except EncoreError as error:
                    log.info("%s: its partitions cannot be asked for; retried: %s", topic, error)
                delay_s = shape.next_look_s(delay_s)
            if self._missing:
                await self._lookup.pool.rest(delay_s)

    async def _recover_topic(self, shape: Shape) -> None:
        count = await shape.ask()
        if count is None and self._watched is None:
            return
        async with self._changing:
            parts = [] if count is None else shape.topics(count)
            names = {topic for topic, _ in parts}
            sources = self._sources_of(shape.topic)
            gone = [source for source in sources if source.topic not in names]
            for source in gone:
                self._leave(source)
            if gone:
                some = ", ".join(source.topic for source in gone[:3])
                text = "%s: deleted, and not waited for: %d of its topics (%s)"
                log.warning(text, self.retry_log.name, len(gone), some)
            is_whole = True
            for topic, partition in parts:
                if self._watched is None:
                    self._base[topic] = shape.topic
                is_whole &= await self._add(topic, partition, creates=shape.may_create)
        if is_whole:
            self._incomplete.discard(shape.topic)
        else:
            self._incomplete.add(shape.topic)
        for source in sources:
            if source.topic in names and source.missing_s is not None:
                is_whole = False
                if shape.may_create or shape.is_due(source.missing_s):
                    source.allow_creation()
                source.hurry()
        if is_whole:
            self._missing.discard(shape.topic)
            if self._watched is not None:
                if count is None:
                    self._shapes.pop(shape.topic, None)
                self._watched.tell_again()

    def _leave(self, source: TopicConsumer) -> None:
        """The topic of a source is no more, or no partition any more: the others go on."""
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
    def _there(self) -> list[TopicConsumer]:
        """The sources whose topics are there."""
        return [source for source in self._sources if source.number not in self._deleted]

    @property
    def topic_consumers(self) -> Sequence[TopicConsumer]:
        """The consumers of the topics by number, deleted topics included."""
        return self._sources

    def snapshot(self) -> ConsumerSnapshot:
        """Return a copy of the state, for tests and debugging."""
        topics = tuple(each.snapshot() for each in self._sources)
        return ConsumerSnapshot(topics, self._budget.used)

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
        if self._closed or self._incomplete:
            return False
        return all(source.is_attached for source in self._there)

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
            self._started(source)

    def _started(self, source: TopicConsumer) -> None:
        source.permits.stopped = self._flow_stopped
        source.start()

    def consumed(self, source: int, messages: int) -> None:
        self._sources[source].consumed(messages)

    def wanted(self, messages: int) -> None:
        for source in self._there:  # one: see `_check_queue`
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
        sources = self._there
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
        sources = self._there
        if len(sources) != 1:
            raise OperationNotSupported(
                "the last message id is one topic's; this consumer has several"
            )
        return await sources[0].last_message_id()

    async def acked_position(self) -> MessageId | None:
        self._check_open()
        return await (self._there or self._sources)[0].acked_position()

    async def has_message_available(self) -> bool:
        self._check_open()
        for source in self._there:
            if await source.has_message_available():
                return True
        return False

    async def unsubscribe(self) -> None:
        self._check_open()
        await _all(source.unsubscribe() for source in self._there)
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
            self._end_tasks()
            if self._watched is not None:
                await self._watched.stop()
            await _all(source.close() for source in self._sources)
        finally:
            self._gone(self)

    def abandon(self) -> None:
        """Drop everything at once; who waits for messages or receipts is told."""
        was_closed, self._closed = self._closed, True
        loop = self._lookup.pool.loop
        self._end_tasks()
        ending = [source.abandon for source in self._sources]
        if self._watched is not None:
            ending.append(self._watched.abandon)
        end_all(loop, *ending)
        elsewhere = loop.is_running() and loop is not running_loop()
        if self._sink is not None and not (was_closed or elsewhere or loop.is_closed()):
            self._sink.on_failed(
                ShutDownError(
                    "the client was shut down, or its event loop ends: close the consumer before, "
                    "and subscribe again"
                )
            )

    def _end_tasks(self) -> None:
        for task in (self._discovering, self._recovering):
            if task is not None:
                cancel(task)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the consumer is closed: subscribe again")

    # What the sources tell (`TopicListener`)

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
        self._end_tasks()
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


async def _caught(call: Coroutine[Any, Any, None]) -> EncoreError | None:
    try:
        await call
    except EncoreError as error:
        return error
    return None


async def _all(calls: Iterable[Coroutine[Any, Any, None]]) -> None:
    """All to their end, also beside one that fails; then its error."""
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
