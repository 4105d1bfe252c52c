"""Events for the application's `event_listener`, and the state of the topics that they are about.

Owns `EventPublisher` (consumers and readers), `ProducerEventPublisher` (producers and letter
producers), and `EventDispatcher`, which calls the listener. The listener runs in a turn of the loop
of its own, after the change that the event reports is complete: it may call anything, and an
exception that it raises is logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterable, Iterator
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

logger: logging.Logger = logging.getLogger(__name__)

EventListener: TypeAlias = Callable[[Any], object]


class EventDispatcher:
    """Calls an application's event listener, in the order of the events.

    Args:
        listener: The application's, if it has one.
        loop: Where the listener runs; a producer that moves to another loop changes it.
        started: False keeps the events until `start`, because the application does not have the
            object yet that they are about.
    """

    def __init__(
        self,
        listener: EventListener | None,
        loop: asyncio.AbstractEventLoop,
        *,
        started: bool = True,
    ) -> None:
        self._listener = listener
        self.loop: asyncio.AbstractEventLoop = loop
        self._pending: list[ConsumerEvent] | None = None if started else []

    @property
    def has_listener(self) -> bool:
        """Whether anyone receives the events."""
        return self._listener is not None

    def start(self) -> None:
        """Send the events that were kept, and from now on each one."""
        pending, self._pending = self._pending, None
        for event in pending or ():
            self.send(event)

    def send(self, event: ConsumerEvent) -> None:
        """Let the listener have an event in a later turn of the loop."""
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
            logger.exception("the event_listener failed at %r", event)

    def close(self) -> None:
        """Drop the events that are under way, and send no others."""
        self._listener = None


class ProducerEventPublisher:
    """The `ProducerListener` of a producer, or of one letter producer of a consumer.

    Args:
        events: Sends the events.
        component: What the producer is for the application.

    Attributes:
        retrying: Topics and partitions that are not attached, with the last event sent.
    """

    def __init__(self, events: EventDispatcher, component: Component = "producer") -> None:
        self.events: EventDispatcher = events
        self.retrying: dict[str, Retrying] = {}
        self._component = component
        self._lost: set[str] = set()  # topics whose `Connected` event is due
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
        """The letter producer that failed was replaced: all its topics are attached."""
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
            self._lost.add(topic)  # only a letter producer can come back
            self.events.send(Failed(topic, error, self._component))

    def moved(self, loop: asyncio.AbstractEventLoop) -> None:
        """The producer's loop has ended, and the producer attaches anew on another one."""
        self.events.loop = loop
        self.retrying.clear()
        self._lost.clear()


class EventPublisher:
    """Sends the events of one consumer or reader, and knows the state of its topics.

    Args:
        link: The subscription.
        listener: The application's, if it has one.
        loop: The event loop of the consumer or reader.
        component: Which of them it is.
        named: The topics that the application named, or its pattern. Events of a connection name
            them while the transport knows no others: the C++ client tells the topics of messages.

    Attributes:
        failure: Why the consumer or reader has ended for good, once it has.
    """

    def __init__(
        self,
        link: TransportConsumer,
        listener: EventListener | None,
        loop: asyncio.AbstractEventLoop,
        component: Component = "consumer",
        *,
        named: tuple[str, ...] = (),
    ) -> None:
        self._link = link
        self._named = named
        self._named_are_lost = False  # they were told as lost, and not yet that they are back
        self._events = EventDispatcher(listener, loop)
        self._component = component
        self._ended: set[int] = set()
        self._removed: set[int] = set()
        self._lost: set[int] = set()  # of which it was told, and not yet that they are back
        self._active: dict[int, bool] = {}  # Failover: of those that the broker has told
        self._retrying: dict[int, Retrying] = {}
        self._letters: list[ProducerEventPublisher] = []
        self.failure: Failed | None = None

    # What the transport says

    def connected(self, only: Container[int] | None) -> None:
        """Subscribed again, to these sources or to all; after a seek that is no news."""
        self._forget_retries(only)
        back = {each for each in self._lost if only is None or each in only}
        self._lost -= back
        if self._named_are_lost:
            self._named_are_lost = False
            self._events.send(Connected(self._named, self._component))
        elif back and self._events.has_listener:
            self._events.send(Connected(self._topics(back), self._component))

    def disconnected(self, only: Container[int] | None) -> None:
        """The connection to these sources is lost: whose turn it is then is told anew."""
        for source in [each for each in self._active if only is None or each in only]:
            del self._active[source]
        self.doubtful(only)

    def doubtful(self, only: Container[int] | None) -> None:
        """That to one of them is lost."""
        self._lost.update(self._sources(only))
        topics = self._topics(only) if self._events.has_listener else ()
        self._named_are_lost = self._events.has_listener and not topics
        if self._events.has_listener:
            self._events.send(Disconnected(topics or self._named, self._component))

    def retrying(self, source: int | None, notice: RetryNotice) -> None:
        """An attempt to attach the source again failed, and others follow."""
        event = _retrying(notice, self._component)
        if source is not None:  # else the event `TopicAdded` says when it is over
            self._lost.add(source)
            self._retrying[source] = event
        self._events.send(event)

    def failed(self, error: Exception, source: int | None) -> None:
        """The link has ended for good, because of a source or as a whole.

        Several sources may fail at the same time: the first one is reported. A `ShutDownError`
        is no failure: the application shut the client down, or ended the event loop.
        """
        if self.failure is None and not isinstance(error, ShutDownError):
            topic = self._link.topic if source is None else self._topic(source)
            self.failure = Failed(topic, error, self._component)
            self._retrying.clear()
            self._events.send(self.failure)

    def letter_announcer(self) -> ProducerEventPublisher:
        """An announcer for another letter producer of this consumer."""
        event_publisher = ProducerEventPublisher(self._events, "letter producer")
        self._letters.append(event_publisher)
        return event_publisher

    def active_changed(self, source: int, active: bool) -> None:
        """Failover: whose turn it is; brokers repeat it."""
        if self._active.get(source) is not active:
            self._active[source] = active
            event = BecameActive if active else BecameInactive
            self._events.send(event(self._topic(source)))

    def end_of_topic(self, source: int) -> None:
        """All of a terminated topic is acked."""
        if source not in self._ended:
            self._ended.add(source)
            self._events.send(EndOfTopic(self._topic(source)))

    def new_source(self, source: int) -> None:
        """One more is read."""
        self._events.send(TopicAdded(self._topic(source), self._component))

    def removed(self, source: int) -> None:
        """The topic of the source is no longer read."""
        self._removed.add(source)
        self._ended.discard(source)
        self._lost.discard(source)
        self._retrying.pop(source, None)
        self._active.pop(source, None)
        self._events.send(TopicRemoved(self._topic(source), self._component))

    def sought(self, only: Container[int] | None) -> None:
        """What was at its end may have messages again."""
        self._forget_retries(only)
        self._ended = {each for each in self._ended if not (only is None or each in only)}

    # What is known

    @property
    def ended_topics(self) -> tuple[str, ...]:
        """Names of those that are at their end."""
        return self._names(sorted(self._ended))

    @property
    def inactive_topics(self) -> tuple[str, ...]:
        """Names of those that another consumer gets the messages of, on Failover."""
        return self._names(source for source, active in self._active.items() if not active)

    @property
    def all_ended(self) -> bool:
        """True if every topic that is read now is at its end."""
        return bool(self._ended) and self._ended.issuperset(self._sources(None))

    @property
    def retries(self) -> tuple[Retrying, ...]:
        """The last event of each topic that is not attached, those of letter producers included."""
        letters = (event for each in self._letters for event in each.retrying.values())
        return (*self._retrying.values(), *letters)

    def _forget_retries(self, only: Container[int] | None) -> None:
        for source in [each for each in self._retrying if only is None or each in only]:
            del self._retrying[source]

    def _topics(self, only: Container[int] | None) -> tuple[str, ...]:
        return self._names(self._sources(only))

    def _sources(self, only: Container[int] | None) -> Iterator[int]:
        """Yield the sources of `only`, or all, whose topics were not removed."""
        for source in self._link.sources():
            if source not in self._removed and (only is None or source in only):
                yield source

    def _names(self, sources: Iterable[int]) -> tuple[str, ...]:
        return tuple(map(self._topic, sources))

    def _topic(self, source: int) -> str:
        return self._link.topic_of(source)[0]

    def close(self) -> None:
        """Tell nothing more."""
        self._events.close()


def _retrying(notice: RetryNotice, component: Component) -> Retrying:
    return Retrying(notice.topic, notice.error, notice.attempts, notice.elapsed_s, component)
