"""The observer behind the exporters of metrics."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal
from weakref import WeakSet, WeakValueDictionary

from ..consumer.consumer import Consumer, counts_by_topic, topics_of
from ..errors import ConfigurationError
from . import instruments as of
from .error_types import ErrorTypes
from .histogram import Histogram
from .object_registry import ObjectRegistry
from .observer import Observer
from .samples import Snapshot, consumer_snapshot, producer_snapshot, worker_snapshot
from .topic_labels import Names, TopicNames, TopicRule, topic_rule

if TYPE_CHECKING:
    from ..producer import Producer
    from ..worker.worker import Worker
    from .meters import CallMeter, SendMeter
    from .observations import BreakerChange


class MetricsObserver(Observer):
    """Adds consumers, producers and workers to a registry, which reads their counts when asked.

    Received and acked messages cost nothing. A handler call costs an addition to a histogram, and a
    send to two counters too.
    """

    def __init__(self, objects: ObjectRegistry, topic_label: Literal["topic"] | None) -> None:
        if topic_label not in (None, "topic"):
            raise ConfigurationError(
                f'topic_label must be None or "topic", got {topic_label!r}: with "topic", each '
                "topic of a pattern or of a long list has its own label"
            )
        self._objects = objects
        self._by_topic = topic_label == "topic"
        self._topics = TopicNames()
        self._subscriptions = Names()
        self._worker_names = Names()
        self._errors = ErrorTypes()
        self._workers: WeakValueDictionary[str, Worker[Any]] = WeakValueDictionary()
        self._open_breakers: set[str] = set()  # names of workers
        self._failed: set[str] = set()  # names of workers
        _of_this_process.add(self)

    def forget_parent(self) -> None:
        """Begin with no objects and no counts, as in a new process. Called after a fork.

        The event loops of the parent process do not run in its child. Each scrape would wait for
        them, and export the parent's counts a second time.
        """
        self._objects.clear()
        self._workers.clear()
        self._open_breakers.clear()
        self._failed.clear()

    # Consumers

    def consumer_opened(self, consumer: Consumer[Any]) -> None:
        rule = self._rule_of(consumer)
        subscription = self._subscriptions.label_of(consumer.subscription_name())

        def read(consumer: Consumer[Any]) -> Snapshot:
            return consumer_snapshot(
                rule,
                subscription,
                consumer.counters(),
                consumer.statistics(),
                counts_by_topic(consumer) if rule.is_split else (),
                consumer.metrics(),
            )

        self._objects.opened(consumer, lambda each: each.affinity.loop, read)
        self._objects.count(of.CONSUMERS_OPENED, (rule.common, subscription))

    def consumer_closed(self, consumer: Consumer[Any]) -> None:
        self._objects.closed(consumer)
        subscription = self._subscriptions.label_of(consumer.subscription_name())
        labels = self._rule_of(consumer).common, subscription
        self._objects.count(of.CONSUMERS_CLOSED, labels)

    def _rule_of(self, consumer: Consumer[Any]) -> TopicRule:
        return topic_rule(
            self._topics,
            topics_of(consumer),
            self._subscriptions.label_of(consumer.subscription_name()),
            by_topic=self._by_topic,
        )

    # Producers

    def producer_opened(self, producer: Producer[Any]) -> None:
        topic = self._topics.label_of(producer.topic())

        def read(producer: Producer[Any]) -> Snapshot:
            return producer_snapshot(topic, is_connected=producer.is_connected())

        self._objects.opened(producer, lambda each: each.affinity.loop, read)
        self._objects.count(of.PRODUCERS_OPENED, (topic,))

    def producer_closed(self, producer: Producer[Any]) -> None:
        self._objects.closed(producer)
        self._objects.count(of.PRODUCERS_CLOSED, (self._topics.label_of(producer.topic()),))

    def send_meter(self, topic: str) -> SendMeter:
        """Return the meter of a producer, for the running event loop."""
        return _SendMeter(self._objects, self._errors, self._topics.label_of(topic))

    # Workers

    def worker_started(self, worker: Worker[Any]) -> None:
        self._workers[worker.name] = worker
        self._set_failed(worker.name, has_failed=False)
        name = self._worker_names.label_of(worker.name)

        def read(worker: Worker[Any]) -> Snapshot:
            return worker_snapshot(name, worker.report(), worker.health())

        self._objects.opened(worker, lambda each: each.loop, read)
        self._objects.count(of.WORKERS_STARTED, (name,))
        # A series that begins at 1 has no increase: Prometheus would not see the first opening.
        self._objects.count(of.BREAKER_OPEN, (name,), 0)
        self._objects.count(of.BREAKER_OPENINGS, (name,), 0)
        self._objects.count(of.IN_STATE, (name, "failed"), 0)

    def worker_ended(self, worker: Worker[Any], error: BaseException | None) -> None:
        self._objects.closed(worker)
        self._set_breaker(worker.name, is_open=False)
        self._set_failed(worker.name, has_failed=error is not None)
        kind = "" if error is None else self._errors.label_of(error)
        name = self._worker_names.label_of(worker.name)
        self._objects.count(of.WORKERS_ENDED, (name, kind))

    def breaker_changed(self, change: BreakerChange) -> None:
        self._set_breaker(change.worker, is_open=change.is_open)

    def _set_breaker(self, worker: str, *, is_open: bool) -> None:
        if is_open == (worker in self._open_breakers):
            return
        name = self._worker_names.label_of(worker)
        self._objects.count(of.BREAKER_OPEN, (name,), 1 if is_open else -1)
        if is_open:
            self._open_breakers.add(worker)
            self._objects.count(of.BREAKER_OPENINGS, (name,))
        else:
            self._open_breakers.discard(worker)

    def _set_failed(self, worker: str, *, has_failed: bool) -> None:
        if has_failed != (worker in self._failed):
            name = self._worker_names.label_of(worker)
            self._objects.count(of.IN_STATE, (name, "failed"), 1 if has_failed else -1)
            (self._failed.add if has_failed else self._failed.discard)(worker)

    def call_meter(self, worker: str, subscription: str) -> CallMeter:
        """Return the meter of a worker's handler calls."""

        common = self._subscriptions.label_of(subscription)

        def rule() -> TopicRule:
            known = self._workers.get(worker)
            if known is None:  # a call that was made by hand
                return TopicRule(self._topics, common)
            return self._rule_of(known.consumer)

        name = self._worker_names.label_of(worker)
        return _CallMeter(self._objects, self._errors, name, common, rule)


_of_this_process: Final[WeakSet[MetricsObserver]] = WeakSet()


def _in_child() -> None:
    for each in list(_of_this_process):
        each.forget_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


class _CallMeter:
    """Adds the handler calls of a worker to histograms.

    Args:
        rule: Returns the labels of the worker's topics, once it has a consumer.
    """

    def __init__(
        self,
        objects: ObjectRegistry,
        errors: ErrorTypes,
        worker: str,
        subscription: str,
        rule: Callable[[], TopicRule],
    ) -> None:
        self._objects = objects
        self._errors = errors
        self._worker = worker
        self._subscription = subscription
        self._make_rule = rule
        self._rule: TopicRule | None = None
        self._successes: dict[str, Histogram] = {}  # by topic or partition

    def succeeded(self, topic: str, duration_s: float) -> None:
        histogram = self._successes.get(topic)
        if histogram is None:
            histogram = self._successes[topic] = self._histogram(topic, "")
        histogram.add(duration_s)

    def failed(self, topic: str, duration_s: float, error: BaseException | None) -> None:
        self._histogram(topic, self._errors.label_of(error)).add(duration_s)

    def _histogram(self, topic: str, error_type: str) -> Histogram:
        if self._rule is None:
            self._rule = self._make_rule()
        labels = self._rule.label_of(topic), self._subscription, self._worker, error_type
        return self._objects.histogram(of.PROCESS_DURATION, labels)


class _SendMeter:
    """Adds the sends of a producer to a histogram and to sums of its thread."""

    __slots__ = ("_clock", "_errors", "_objects", "_pending", "_size", "_stored", "_topic")

    def __init__(self, objects: ObjectRegistry, errors: ErrorTypes, topic: str) -> None:
        self._objects = objects
        self._errors = errors
        self._topic = topic
        loop = asyncio.get_running_loop()
        # asyncio's own loops do no more in `time`, and a Python call takes twice as long.
        is_plain = getattr(type(loop), "time", None) is asyncio.BaseEventLoop.time
        self._clock = time.monotonic if is_plain else loop.time
        self._pending = objects.cell(of.PENDING, (topic,))
        self._size = objects.cell(of.SENT_SIZE, (topic,))
        self._stored = objects.histogram(of.SEND_DURATION, (topic, ""))

    def begin(self) -> float:
        self._pending.value += 1
        return self._clock()

    def stored(self, begun_s: float, size: int) -> None:
        self._pending.value -= 1
        self._size.value += size
        self._stored.add(self._clock() - begun_s)

    def failed(self, begun_s: float, error: BaseException) -> None:
        self._pending.value -= 1
        labels = self._topic, self._errors.label_of(error)
        self._objects.histogram(of.SEND_DURATION, labels).add(self._clock() - begun_s)
