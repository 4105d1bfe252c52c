"""How far a subscription is behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ..core.topic_state import TopicState
from ..errors import AuthenticationError, AuthorizationError, NotAllowedError, OperationNotSupported
from ..eventloop.alarm import wall_now_ms
from ..options import ConsumerOptions
from ..transport.interface import TopicEnds, TransportConsumer
from ..values.topic_names import base_name, full_name, partition_of
from .delivery.receive_queue import ReceiveQueue
from .leases.lease_table import LeaseTable
from .topic_states import TopicStates

if TYPE_CHECKING:
    from ..admin import SubscriptionStats, WebService

_T = TypeVar("_T")

#: Largest backlog of which the broker counts the messages: its own default limit is the same.
MOST_COUNTED: Final = 10_000
_CONCURRENT: Final = 8  # topics asked for at a time


@dataclass(frozen=True, slots=True)
class TopicLag:
    """The lag of a subscription in one topic, all partitions of a partitioned topic together.

    Attributes:
        topic: Full name, without the partition.
        messages: Unacked messages; None if unknown.
        seconds: Age of the oldest unacked message by its publish time; None if unknown.
        exact: False for estimates.
    """

    topic: str
    messages: int | None
    seconds: float | None
    exact: bool


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of a subscription.

    Attributes:
        topics: By topic, in the order of their names.
        complete: False if there may be more topics: the stock transport learns the topics of a
            pattern from their messages.
    """

    topics: tuple[TopicLag, ...]
    complete: bool = True

    @property
    def messages(self) -> int | None:
        """The sum over all topics; None if one is unknown."""
        return _sum(each.messages for each in self.topics) if self._knows_any else None

    @property
    def seconds(self) -> float | None:
        """The largest age; None if one is unknown."""
        return _max(each.seconds for each in self.topics) if self._knows_any else None

    @property
    def exact(self) -> bool:
        return self.complete and all(each.exact for each in self.topics)

    @property
    def _knows_any(self) -> bool:
        return self.complete or bool(self.topics)


class CountedLag:
    """The lag of any subscription, as the brokers count it."""

    def __init__(self, web: WebService, subscription: str, loop: asyncio.AbstractEventLoop) -> None:
        self._web = web
        self._subscription = subscription
        self._loop = loop

    async def by_partition(self, topic: str) -> list[TopicLag]:
        """Return the lag of each partition; without numbers where the subscription is missing."""
        web = self._web
        if partition_of(topic) < 0 and await web.partitions(topic):
            stats = await web.stats(topic, partitioned=True, earliest=True)
            parts = {name: each.subscriptions for name, each in stats.partitions.items()}
        else:
            parts = {topic: (await web.stats(topic, earliest=True)).subscriptions}
        return [
            await self._counted(name, subscriptions.get(self._subscription))
            for name, subscriptions in parts.items()
        ]

    async def _counted(self, topic: str, found: SubscriptionStats | None) -> TopicLag:
        if found is None:
            return TopicLag(topic, None, None, False)
        if found.backlog <= 0:
            return TopicLag(topic, 0, 0.0, True)
        seconds = None
        if found.earliest_publish_ms is not None:
            seconds = _age_s(found.earliest_publish_ms, self._loop)
        if found.backlog <= MOST_COUNTED:
            try:
                counted = await self._web.analyze_backlog(topic, self._subscription)
            except (AuthenticationError, AuthorizationError, NotAllowedError):
                pass  # an older broker, or a login that may read the statistics only
            else:
                if counted.complete:
                    # The statistics are older: the last messages may have been acked since.
                    age = seconds if counted.messages else 0.0
                    return TopicLag(topic, counted.messages, age, True)
        return TopicLag(topic, found.backlog, seconds, False)


class LagQuery:
    """One call of `Consumer.lag`."""

    def __init__(
        self,
        transport_consumer: TransportConsumer,
        options: ConsumerOptions,
        states: TopicStates,
        queue: ReceiveQueue,
        leases: LeaseTable,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._transport_consumer = transport_consumer
        self._options = options
        self._states = states
        self._queue = queue
        self._leases = leases
        self._loop = loop
        self._subscription = transport_consumer.subscription_name

    async def run(self, new_web_service: Callable[[], WebService] | None) -> Lag:
        if new_web_service is None:
            return self._lag(await self._estimates())
        web = new_web_service()
        counted = CountedLag(web, self._subscription, self._loop)
        try:
            limit = asyncio.Semaphore(_CONCURRENT)

            async def ask(topic: str) -> list[TopicLag]:
                async with limit:
                    return await counted.by_partition(topic)

            found = await _all(map(ask, self._names()))
        except (AuthenticationError, AuthorizationError) as error:
            # Not in `CountedLag`: the command `lag` has no estimate to offer.
            raise type(error)(
                f"{error}. `lag` without admin_url is an estimate that needs no more than consuming"
            ) from error
        finally:
            web.close()
        return self._lag(each for topic in found for each in topic)

    def _lag(self, found: Iterable[TopicLag]) -> Lag:
        known = self._options.pattern is None or self._transport_consumer.capabilities.all_topics
        return Lag(_by_topic(found), complete=known)

    # From the web service

    def _names(self) -> list[str]:
        """Return the topics that the consumer reads, partitioned ones by their base name."""
        options = self._options
        names = {full_name(each) for each in options.topics}
        if options.pattern is not None:
            consumer = self._transport_consumer
            names = {base_name(consumer.topic_of(each)[0]) for each in consumer.topic_numbers()}
        if options.retry_letter_topic is not None:
            names.add(full_name(options.retry_letter_topic))
        return sorted(names)

    # Estimates

    async def _estimates(self) -> list[TopicLag]:
        oldest = self._oldest()
        limit = asyncio.Semaphore(_CONCURRENT)

        async def estimate(number: int) -> TopicLag:
            topic, _ = self._transport_consumer.topic_of(number)
            async with limit:
                try:
                    ends = await self._transport_consumer.ends_of(number)
                except OperationNotSupported:
                    ends = None
            messages = (
                None if ends is None else _entries_behind(self._states.by_number[number], ends)
            )
            publish_ms = oldest.get(number)
            seconds = 0.0 if messages == 0 else None
            if publish_ms is not None and messages != 0:
                seconds = _age_s(publish_ms, self._loop)
            return TopicLag(topic, messages, seconds, False)

        found = await _all(map(estimate, self._numbers()))
        told = {base_name(each.topic) for each in found}
        silent = [each for each in self._names() if base_name(each) not in told]
        return [*found, *(TopicLag(each, None, None, False) for each in silent)]

    def _numbers(self) -> Collection[int]:
        """Return the numbers of all topics. The stock transport learns them by their messages."""
        consumer = self._transport_consumer
        numbers = consumer.topic_numbers()
        if numbers or len(self._options.topics) != 1:
            return numbers
        name = full_name(self._options.topics[0])
        number = consumer.topic_number_of(name, partition_of(name))
        return () if number is None else (number,)

    def _oldest(self) -> dict[int, int]:
        """Return the earliest publish time of the messages at hand, by topic number."""
        found: dict[int, int] = {}
        for state, message in self._queue.first_messages():
            found[state.number] = message.publish_timestamp()
        for record in self._leases:
            number = record.held.entry.topic_state.number
            publish_ms = record.message.publish_timestamp()
            found[number] = min(publish_ms, found.get(number, publish_ms))
        return found


def _entries_behind(state: TopicState, ends: TopicEnds) -> int | None:
    """Estimate the unacked entries by their numbers, which are consecutive in a ledger."""
    last = (ends.last.ledger_id(), ends.last.entry_id())
    if last[1] < 0 or state.volatile:
        return 0
    if ends.acked is not None:
        acked = (ends.acked.ledger_id(), ends.acked.entry_id())
    else:
        unacked = [*state.table.entries, *(key[:2] for _, key in state.nacks.soonest(1_000))]
        if not unacked:
            return 0 if state.table.highest >= last else None
        first = min(unacked)
        acked = (first[0], first[1] - 1)
    if acked >= last:
        return 0
    return last[1] - acked[1] if acked[0] == last[0] else None


def _age_s(publish_ms: int, loop: asyncio.AbstractEventLoop) -> float:
    return max(0.0, (wall_now_ms(loop) - publish_ms) / 1000)


async def _all(questions: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Return all answers, or raise the first error and cancel the other questions.

    `asyncio.gather` would leave them running, with a web service that is closed.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in questions]
        return [each.result() for each in tasks]
    except BaseExceptionGroup as errors:
        first = errors.exceptions[0]
    raise first


def _by_topic(found: Iterable[TopicLag]) -> tuple[TopicLag, ...]:
    parts: dict[str, list[TopicLag]] = {}
    for each in found:
        parts.setdefault(base_name(each.topic), []).append(each)
    return tuple(
        TopicLag(
            topic,
            _sum(each.messages for each in parts[topic]),
            _max(each.seconds for each in parts[topic]),
            all(each.exact for each in parts[topic]),
        )
        for topic in sorted(parts)
    )


def _sum(numbers: Iterable[int | None]) -> int | None:
    total = 0
    for each in numbers:
        if each is None:
            return None
        total += each
    return total


def _max(ages: Iterable[float | None]) -> float | None:
    largest = 0.0
    for each in ages:
        if each is None:
            return None
        largest = max(largest, each)
    return largest
