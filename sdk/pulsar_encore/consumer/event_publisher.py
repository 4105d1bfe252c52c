"""Events for an application's `event_listener`, and the state of the topics that they concern.

The listener runs in a separate iteration of the loop, after the reported change is complete, so it
may call anything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterable
from typing import Any, TypeAlias

from ..transport.interface import RetryNotice, ShutDownError, TransportConsumer
from .events import (
    BecameActive,
    BecameInactive,
    Component,
    Connected,
    ConsumerEvent,
    Disconnected,
    EndOfTopic,
    Failed,
    Retrying,
    TopicAdded,
    TopicRemoved,
)

EventListener: TypeAlias = Callable[[Any], object]


class EventDispatcher:
    """Calls an application's event listener, in the order of the events.

    Args:
        started: False keeps the events until `start`, because the application does not have the
            object yet.
    """

    def __init__(
        self,
        listener: EventListener | None,
        loop: asyncio.AbstractEventLoop,
        *,
        started: bool = True,
        logger_of: Callable[[str], logging.Logger] = logging.getLogger,
    ) -> None:
        self._logger = logger_of(__name__)
        self._listener = listener
        self.loop: asyncio.AbstractEventLoop = loop
        self._pending: list[ConsumerEvent] | None = None if started else []

    @property
    def has_listener(self) -> bool:
        return self._listener is not None

    def start(self) -> None:
        pending, self._pending = self._pending, None
        for event in pending or ():
            self.send(event)

    def send(self, event: ConsumerEvent) -> None:
        if self._pending is not None:
            self._pending.append(event)
        elif self._listener is not None:
            self.loop.call_soon(self._call, event)

    def _call(self, event: ConsumerEvent) -> None:
        if self._listener is None:
            return  # closed meanwhile
        try:
            self._listener(event)
        except Exception:
            self._logger.exception("the event_listener failed at %r", event)

    def close(self) -> None:
        self._listener = None


class ProducerEventPublisher:
    """The `ProducerListener` of a producer, or of one letter producer of a consumer.

    Attributes:
        retrying: The last `Retrying` event of each topic that is not attached.
    """

    def __init__(self, events: EventDispatcher, component: Component = "producer") -> None:
        self.events: EventDispatcher = events
        self.retrying: dict[str, Retrying] = {}
        self._component = component
        self._lost: set[str] = set()  # topics that still need a `Connected` event
        self._failed: set[str] = set()

    def on_disconnected(self, topic: str) -> None:
        if self._component != "letter producer":
            self._lost.add(topic)
            self.events.send(Disconnected((topic,), self._component))

    def on_retrying(self, notice: RetryNotice) -> None:
        self._lost.add(notice.topic)
        self.retrying[notice.topic] = event = _retrying(notice, self._component)
        self.events.send(event)

    def on_connected(self, topic: str) -> None:
        self.retrying.pop(topic, None)
        self._failed.discard(topic)
        if topic in self._lost:
            self._lost.discard(topic)
            self.events.send(Connected((topic,), self._component))

    def on_removed(self, topic: str) -> None:
        self.retrying.pop(topic, None)
        self._lost.discard(topic)
        self._failed.discard(topic)
        self.events.send(TopicRemoved(topic, self._component))

    def replaced(self) -> None:
        """Mark all topics as attached: a new letter producer replaces the failed one."""
        topics = tuple(sorted(self._lost))
        self.retrying.clear()
        self._lost.clear()
        self._failed.clear()
        if topics:
            self.events.send(Connected(topics, self._component))

    def on_failed(self, topic: str, error: Exception) -> None:
        self.retrying.pop(topic, None)
        if topic not in self._failed:
            self._failed.add(topic)
            self._lost.add(topic)  # only a letter producer can attach again
            self.events.send(Failed(topic, error, self._component))

    def moved(self, loop: asyncio.AbstractEventLoop) -> None:
        self.events.loop = loop
        self.retrying.clear()
        self._lost.clear()


class EventPublisher:
    """The events of one consumer or reader, and the state of its topics.

    Args:
        named: The topics or the pattern that the application named, for connection events before
            the transport knows the topics: the C++ client only names the topics of messages.
    """

    def __init__(
        self,
        transport_consumer: TransportConsumer,
        listener: EventListener | None,
        loop: asyncio.AbstractEventLoop,
        component: Component = "consumer",
        *,
        named: tuple[str, ...] = (),
        logger_of: Callable[[str], logging.Logger] = logging.getLogger,
    ) -> None:
        self._transport_consumer = transport_consumer
        self._named = named
        self._named_are_lost = False  # `Disconnected` was sent for them, and no `Connected` yet
        self._events = EventDispatcher(listener, loop, logger_of=logger_of)
        self._component = component
        self._ended: set[int] = set()
        self._removed: set[int] = set()
        # `Disconnected` was sent for these topics, and no `Connected` yet.
        self._lost: set[int] = set()
        self._active: dict[int, bool] = {}  # Failover: the topics that the broker has reported
        self._retrying: dict[int, Retrying] = {}
        self._letters: list[ProducerEventPublisher] = []
        self.failure: Failed | None = None
        #: How often a lost connection was restored.
        self.reconnects: int = 0

    # Calls of the transport

    def connected(self, topics: Container[int] | None) -> None:
        """Report reconnected topics, but no connection after a seek."""
        self._forget_retries(topics)
        back = set(_within(topics, self._lost))
        self._lost -= back
        self.reconnects += bool(back) or self._named_are_lost
        if self._named_are_lost:
            self._named_are_lost = False
            self._events.send(Connected(self._named, self._component))
        elif back and self._events.has_listener:
            self._events.send(Connected(self._topics(back), self._component))

    def disconnected(self, topics: Container[int] | None) -> None:
        """Report a lost connection. After the reconnect the broker names the active consumer."""
        for topic_number in _within(topics, self._active):
            del self._active[topic_number]
        self.uncertain(topics)

    def uncertain(self, topics: Container[int] | None) -> None:
        """Report that at least one of these topics lost its connection."""
        self._lost.update(self._topic_numbers(topics))
        if self._events.has_listener:
            names = self._topics(topics)
            self._named_are_lost = not names
            self._events.send(Disconnected(names or self._named, self._component))

    def retrying(self, topic_number: int | None, notice: RetryNotice) -> None:
        event = _retrying(notice, self._component)
        if topic_number is not None:  # otherwise `TopicAdded` reports the success
            self._lost.add(topic_number)
            self._retrying[topic_number] = event
        self._events.send(event)

    def failed(self, error: Exception, topic_number: int | None) -> None:
        """Report the first failure.

        A `ShutDownError` is not reported: the application shut the client down or ended the loop.
        """
        if self.failure is None and not isinstance(error, ShutDownError):
            topic = (
                self._transport_consumer.topic
                if topic_number is None
                else self._topic(topic_number)
            )
            self.failure = Failed(topic, error, self._component)
            self._retrying.clear()
            self._events.send(self.failure)

    def new_letter_publisher(self) -> ProducerEventPublisher:
        event_publisher = ProducerEventPublisher(self._events, "letter producer")
        self._letters.append(event_publisher)
        return event_publisher

    def active_changed(self, topic_number: int, active: bool) -> None:
        """Failover: report a change. Brokers repeat this command."""
        if self._active.get(topic_number) is not active:
            self._active[topic_number] = active
            event = BecameActive if active else BecameInactive
            self._events.send(event(self._topic(topic_number)))

    def end_of_topic(self, topic_number: int) -> None:
        if topic_number not in self._ended:
            self._ended.add(topic_number)
            self._events.send(EndOfTopic(self._topic(topic_number)))

    def new_topic(self, topic_number: int) -> None:
        self._events.send(TopicAdded(self._topic(topic_number), self._component))

    def removed(self, topic_number: int) -> None:
        self._removed.add(topic_number)
        self._ended.discard(topic_number)
        self._lost.discard(topic_number)
        self._retrying.pop(topic_number, None)
        self._active.pop(topic_number, None)
        self._events.send(TopicRemoved(self._topic(topic_number), self._component))

    def sought(self, topics: Container[int] | None) -> None:
        self._forget_retries(topics)
        self._ended.difference_update(_within(topics, self._ended))

    # State of the topics

    @property
    def ended_topics(self) -> tuple[str, ...]:
        return self._names(sorted(self._ended))

    @property
    def inactive_topics(self) -> tuple[str, ...]:
        return self._names(
            topic_number for topic_number, active in self._active.items() if not active
        )

    @property
    def all_ended(self) -> bool:
        return bool(self._ended) and self._ended.issuperset(self._topic_numbers(None))

    @property
    def retries(self) -> tuple[Retrying, ...]:
        letters = (event for each in self._letters for event in each.retrying.values())
        return (*self._retrying.values(), *letters)

    def _forget_retries(self, topics: Container[int] | None) -> None:
        for topic_number in _within(topics, self._retrying):
            del self._retrying[topic_number]

    def _topics(self, topics: Container[int] | None) -> tuple[str, ...]:
        return self._names(self._topic_numbers(topics))

    def _topic_numbers(self, topics: Container[int] | None) -> list[int]:
        numbers = _within(topics, self._transport_consumer.topic_numbers())
        return [number for number in numbers if number not in self._removed]

    def _names(self, topic_numbers: Iterable[int]) -> tuple[str, ...]:
        return tuple(map(self._topic, topic_numbers))

    def _topic(self, topic_number: int) -> str:
        return self._transport_consumer.topic_of(topic_number)[0]

    def close(self) -> None:
        self._events.close()


def _within(topics: Container[int] | None, numbers: Iterable[int]) -> list[int]:
    """Select the numbers in `topics`; None means all."""
    return [each for each in numbers if topics is None or each in topics]


def _retrying(notice: RetryNotice, component: Component) -> Retrying:
    return Retrying(notice.topic, notice.error, notice.attempts, notice.elapsed_s, component)
