"""Finds the topics and partitions of a consumer.

A named topic that is deleted is looked for until it exists again. If it then has other partitions,
the consumers of partitions that are gone are removed, and the new partitions are subscribed to. The
topics of a pattern are removed as soon as they are deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from ....errors import EncoreError, TopicNotFound
from ....errors import LookupError as TopicLookupError
from ....eventloop.affinity import cancel
from ....eventloop.process import in_background
from ....options import Subscription
from ....values.backoff import FailureReports
from ....values.topic_names import base_name, full_name
from ...interface import RetryNotice
from ..connection.reconnect_backoff import ReconnectBackoff
from ..connection.retry_log import RetryLog
from ..lookup.binary_lookup import check_partitions
from ..lookup.lookup import Lookup
from ..lookup.pattern_watch import PatternWatch
from ..lookup.topic_shape import TopicShape
from .topic_consumer import TopicConsumer

LOG_NAME: Final = "pulsar_encore.consumer"


class TopicOwner(Protocol):
    """The consumer that reads the discovered topics.

    Attributes:
        topic: The topic or pattern.
        by_topic: The number of each topic that is read, by full name.
        present: The consumers of all topics that exist.
    """

    retry_log: RetryLog

    @property
    def topic(self) -> str: ...
    @property
    def is_closed(self) -> bool: ...
    @property
    def by_topic(self) -> Mapping[str, int]: ...
    @property
    def present(self) -> Sequence[TopicConsumer]: ...

    def is_connected(self) -> bool:
        """Return True if all topics are attached."""

    def new_topic(self, topic: str, partition: int, *, creates: bool) -> TopicConsumer:
        """Make the consumer of one more topic, or raise EncoreError."""

    def started(self, consumer: TopicConsumer) -> None:
        """Announce a new topic that is attached, and give permits."""

    def refused(self, consumer: TopicConsumer) -> None:
        """Forget the topic that was made last, because it cannot be subscribed to."""

    def removed(self, consumer: TopicConsumer) -> None:
        """Remove a topic that was deleted, or has other partitions now."""

    def report(self, notice: RetryNotice) -> None:
        """Report a topic that cannot be subscribed to."""


class TopicDiscovery:
    """Finds the topics of one consumer.

    Args:
        creates: Subscribing for the first time may create a topic.
    """

    def __init__(
        self, owner: TopicOwner, lookup: Lookup, subscription: Subscription, *, creates: bool
    ) -> None:
        self._owner = owner
        self._lookup = lookup
        self._log = lookup.pool.settings.logger_of(LOG_NAME)
        self._subscription = subscription
        self._creates = creates
        self._refusals: dict[str, FailureReports] = {}  # of topics that were found later
        self._shapes: dict[str, TopicShape] = {}  # by topic name, without the partition
        # For named topics and their partitions: the key in `_shapes`. See `_key_of`.
        self._base: dict[str, str] = {}
        self._missing: set[str] = set()
        self._incomplete: set[str] = set()  # topics with partitions that refused the subscription
        self._changing = asyncio.Lock()  # held while topics are added or removed
        self._watched: PatternWatch | None = None
        if subscription.pattern is not None:
            self._watched = PatternWatch(
                lookup,
                subscription.pattern,
                subscription.regex_subscription_mode,
                subscription.pattern_auto_discovery_period,
                subscription.excluded_topics,
            )
        self._round = lookup.make_round()
        self._discovering: asyncio.Task[None] | None = None
        self._recovering: asyncio.Task[None] | None = None

    @property
    def is_complete(self) -> bool:
        """False if some partitions could not be subscribed to."""
        return not self._incomplete

    @property
    def remembered(self) -> int:
        """Number of remembered topic names, for tests of memory use."""
        names = (self._shapes, self._base, self._missing, self._refusals, self._incomplete)
        return sum(len(each) for each in names)

    async def first_topics(self) -> list[tuple[str, int]]:
        """Return full name and partition number of each topic and partition that exists now."""
        return await self._topics(create=self._creates)

    def start(self) -> None:
        self._discovering = in_background(self._lookup.pool.loop, self._discover())

    async def stop(self) -> None:
        self.cancel()
        if self._watched is not None:
            await self._watched.stop()

    def abandon(self) -> None:
        if self._watched is not None:
            self._watched.abandon()

    def cancel(self) -> None:
        for task in (self._discovering, self._recovering):
            if task is not None:
                cancel(task)

    # Topics that are new

    async def _topics(self, *, create: bool) -> list[tuple[str, int]]:
        """As `first_topics`. With `create`, brokers may create missing named topics."""
        if self._watched is not None:
            return await self._parts(map(base_name, await self._watched.first()), create=False)
        return await self._parts(map(full_name, self._subscription.topics), create=create)

    async def _new_topics(self) -> list[tuple[str, int]]:
        """Wait until it is time to look again, and return the topics that are new."""
        known = self._owner.by_topic
        if self._watched is not None:
            names = await self._watched.changed()
            there = set(map(base_name, names))
            for topic in [each for each in self._refusals if base_name(each) not in there]:
                del self._refusals[topic]
            found = await self._parts(
                (base_name(name) for name in names if name not in known), create=False
            )
        else:
            await self._round.next(self._lookup.pool.settings.discovery_s)
            try:
                found = await self._topics(create=False)
            except EncoreError:
                self._round.again()
                raise
        return [each for each in found if each[0] not in known]

    async def _parts(self, topics: Iterable[str], *, create: bool) -> list[tuple[str, int]]:
        """Return full name and partition number of each topic and partition.

        Raises:
            TopicNotFound: at the first look at named topics. Later, missing topics are left out.
            LookupError: if there are more partitions than the client accepts.
        """
        known = self._owner.by_topic
        is_first = self._discovering is None and self._watched is None
        found: list[tuple[str, int]] = []
        total = len(known)
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
            # A topic may get more partitions. Any other change means that it was created again.
            if shape is None or not (count == shape.partitions or 0 < shape.partitions < count):
                if shape is not None and self._consumers_of(topic):
                    self.look_for(topic)  # some of its partitions are gone
                    continue
                shape = self._shapes[topic] = TopicShape(
                    self._lookup,
                    topic,
                    creates=self._creates,
                    partitions=count,
                    # Deleted topics of a pattern are not looked for: see `NativeConsumer.removed`.
                    name=None if self._watched is not None else self._owner.retry_log.name,
                )
            check_partitions(count, topic, most)
            shape.partitions = count
            parts = shape.topics(count)
            total += sum(each not in known for each, _ in parts)
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
        """Return the key in `_shapes` of a topic or partition that is read."""
        return self._base[topic] if self._watched is None else base_name(topic)

    def _consumers_of(self, topic: str) -> list[TopicConsumer]:
        return [each for each in self._owner.present if self._key_of(each.topic) == topic]

    async def _discover(self) -> None:
        failed: FailureReports | None = None  # looks in a row
        while True:
            try:
                topics = await self._new_topics()
            except EncoreError as error:  # the next look may be answered
                failed = failed or FailureReports()
                # A lost connection is reported anyway.
                if failed.failed(self._lookup.pool.loop.time()) and self._owner.is_connected():
                    text = "%s: new topics and partitions cannot be looked for; retried: %s"
                    self._log.warning(text, self._owner.topic, error)
                continue
            failed = None
            for topic, partition in topics:
                async with self._changing:
                    added = await self._add(topic, partition)
                if not added:
                    self._look_again()

    async def _add(self, topic: str, partition: int, *, creates: bool = False) -> bool:
        """Subscribe to one more topic, or return False and forget it."""
        if self._owner.is_closed or topic in self._owner.by_topic:
            return True
        try:
            consumer = self._owner.new_topic(topic, partition, creates=creates)
        except EncoreError as error:
            self._log.error("%s cannot be read: %s", topic, error)
            return False
        refused = await error_of(consumer.attachment.first())
        if refused is not None:
            self._report_refusal(topic, refused)
            self._owner.refused(consumer)
            return False
        self._refusals.pop(topic, None)
        self._owner.started(consumer)
        return True

    def _report_refusal(self, topic: str, error: EncoreError) -> None:
        """Report that a topic cannot be subscribed to: at once, then more rarely."""
        if isinstance(error, TopicNotFound):  # deleted since it was found
            self._log.info("%s: not subscribed to: %s", topic, error)
            self._refusals.pop(topic, None)
            return
        now_s = self._lookup.pool.loop.time()
        reports = self._refusals.setdefault(topic, FailureReports())
        if not reports.failed(now_s):
            return
        self._log.warning("%s: not subscribed to, and retried: %s", topic, error)
        elapsed_s = reports.elapsed_s(now_s)
        self._owner.report(RetryNotice(topic, error, reports.attempts, elapsed_s))

    def _look_again(self) -> None:
        if self._watched is not None:
            self._watched.refresh_soon()
        else:
            self._round.again()

    # Topics that are gone, and come back

    def missing(self, consumer: TopicConsumer) -> None:
        self.look_for(self._key_of(consumer.topic))

    def look_for(self, topic: str) -> None:
        """Look for a topic, by its key in `_shapes`, until it exists."""
        self._missing.add(topic)
        if self._recovering is None or self._recovering.done():
            self._recovering = in_background(self._lookup.pool.loop, self._recover())

    async def _recover(self) -> None:
        """Look for topics that are gone until they exist, and read the partitions they have."""
        settings = self._lookup.pool.settings
        delays = ReconnectBackoff(settings.backoff_s, settings.max_backoff_s, self._lookup.pool.rng)
        while self._missing:
            delay_s = delays.next()
            for topic in list(self._missing):
                shape = self._shapes.get(topic)
                if shape is None:  # the topic of a pattern was removed, and found again since
                    shape = self._shapes[topic] = TopicShape(
                        self._lookup, topic, creates=self._creates
                    )
                try:
                    await self._recover_topic(shape)
                except EncoreError as error:
                    self._log.info(
                        "%s: its partitions cannot be asked for; retried: %s", topic, error
                    )
                delay_s = shape.next_look_s(delay_s)
            if self._missing:
                await self._lookup.pool.rest(delay_s)

    async def _recover_topic(self, shape: TopicShape) -> None:
        count = await shape.ask()
        if count is None and self._watched is None:
            return
        async with self._changing:
            parts = [] if count is None else shape.topics(count)
            names = {topic for topic, _ in parts}
            consumers = self._consumers_of(shape.topic)
            gone = [each for each in consumers if each.topic not in names]
            for consumer in gone:
                self._owner.removed(consumer)
            if gone:
                some = ", ".join(each.topic for each in gone[:3])
                text = "%s: deleted, and not waited for: %d of its topics (%s)"
                self._log.warning(text, self._owner.retry_log.name, len(gone), some)
            is_whole = True
            for topic, partition in parts:
                if self._watched is None:
                    self._base[topic] = shape.topic
                is_whole &= await self._add(topic, partition, creates=shape.may_create)
        if is_whole:
            self._incomplete.discard(shape.topic)
        else:
            self._incomplete.add(shape.topic)
        for consumer in consumers:
            missing_s = consumer.subscriber.missing_s
            if consumer.topic in names and missing_s is not None:
                is_whole = False
                if shape.may_create or shape.is_due(missing_s):
                    consumer.subscriber.may_create = True
                consumer.attachment.retry_now()
        if is_whole:
            self._missing.discard(shape.topic)
            if self._watched is not None:
                if count is None:
                    self._shapes.pop(shape.topic, None)
                self._watched.notify()


async def error_of(call: Coroutine[Any, Any, None]) -> EncoreError | None:
    """Return the EncoreError of a call."""
    try:
        await call
    except EncoreError as error:
        return error
    return None
