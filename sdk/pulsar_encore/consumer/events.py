"""The events that an `event_listener` of a consumer, producer or reader receives.

Each event is a class of values. `ConsumerEvent`, `ProducerEvent` and `ReaderEvent` are the unions
that a listener's parameter can be annotated with. The stock transport reports `Connected` and
`Disconnected` of consumers, without saying which of several topics is concerned, and `Failed` of
consumers and readers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Component: TypeAlias = Literal["consumer", "producer", "reader", "letter producer"]
"""The object that an event is about. A "letter producer" is a producer that a consumer uses for its
retry letter topic or a dead letter topic."""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection to these topics is lost; the transport connects again by itself.

    Not sent for letter producers, which have nothing to do most of the time.

    Attributes:
        topics: Full names of the topics or partitions concerned, as far as they are known; where it
            cannot be told which, of all that may be.
        component: Whose connection was lost.
    """

    topics: tuple[str, ...]
    component: Component = "consumer"


@dataclass(frozen=True, slots=True)
class Connected:
    """Attached to the broker again, after `Disconnected` or `Retrying`: the loss is over.

    A letter producer sends this event after `Retrying` or `Failed` only.

    Attributes:
        topics: As those of `Disconnected`.
        component: Whose connection is back. A consumer with letter topics also receives this event
            for its letter producers: look at this attribute to tell them apart.
    """

    topics: tuple[str, ...]
    component: Component = "consumer"


@dataclass(frozen=True, slots=True)
class Retrying:
    """An attempt to attach to a topic again failed; further attempts follow.

    Sent at the first failed attempt after a loss, then at growing intervals of up to 5 minutes.
    `Connected` says that it is over, `Failed` that no further attempt is made, and `TopicRemoved`
    that the topic is gone. For a partition or topic that a consumer found later, `TopicAdded` says
    that it is over.

    Attributes:
        topic: Full name of the topic or partition.
        error: Why the last attempt failed, with the broker's reason.
        attempts: Failed attempts since the loss, from 1.
        elapsed: Time since the loss, in seconds.
        component: What is not attached.
    """

    topic: str
    error: Exception
    attempts: int
    elapsed: float
    component: Component = "consumer"


@dataclass(frozen=True, slots=True)
class Failed:
    """A consumer, producer, reader or letter producer has ended for good. Sent once.

    It makes no further attempt to attach. All calls of a consumer or reader raise `error`, even if
    the event names only one of its topics, and its `message_listener` is not called again. Remove
    the cause, close the consumer or reader, and make a new one. A producer refuses every message to
    this topic or partition with `error`, and sends messages to other partitions. A letter producer
    is replaced when the next letter is sent, at most once a minute. Until that succeeds
    (`Connected`), the messages stay with the consumer and are redelivered. The event is not sent
    after `close`, nor when the client is shut down or its event loop ends.

    Attributes:
        topic: Full name of the topic or partition that caused it.
        error: Why, such as a `TopicTerminated`, with the broker's reason.
        component: What has ended.
    """

    topic: str
    error: Exception
    component: Component = "consumer"


@dataclass(frozen=True, slots=True)
class BecameActive:
    """Failover: this consumer gets the messages of the topic from now on.

    Told at the beginning as well, and anew after a connection was lost.

    Attributes:
        topic: Full name of the topic or partition.
    """

    topic: str


@dataclass(frozen=True, slots=True)
class BecameInactive:
    """Failover: another consumer gets the messages of the topic, and this one stands by.

    Attributes:
        topic: Full name of the topic or partition.
    """

    topic: str


@dataclass(frozen=True, slots=True)
class EndOfTopic:
    """The topic was terminated, and this subscription has acked all of it.

    Attributes:
        topic: Full name of the topic or partition.
    """

    topic: str


@dataclass(frozen=True, slots=True)
class TopicAdded:
    """A new partition, or a topic that fits the pattern, is read as well from now on.

    Attributes:
        topic: Full name of the topic or partition.
        component: What reads it.
    """

    topic: str
    component: Component = "consumer"


@dataclass(frozen=True, slots=True)
class TopicRemoved:
    """A topic or partition was deleted, or the topic was created again with other partitions.

    Nothing is read from it or sent to it any more, and no `Connected` event follows for it. If the
    topic has other partitions now, a consumer receives a `TopicAdded` event for each.

    Attributes:
        topic: Full name of the topic or partition.
        component: What used it.
    """

    topic: str
    component: Component = "consumer"


ConsumerEvent: TypeAlias = (
    Connected
    | Disconnected
    | Retrying
    | Failed
    | BecameActive
    | BecameInactive
    | EndOfTopic
    | TopicAdded
    | TopicRemoved
)
"""Events of `Client.subscribe(event_listener=...)`."""

ProducerEvent: TypeAlias = Connected | Disconnected | Retrying | Failed | TopicRemoved
"""Events of `Client.create_producer(event_listener=...)`."""

ReaderEvent: TypeAlias = Connected | Disconnected | Retrying | Failed | TopicAdded | TopicRemoved
"""Events of `Client.create_reader(event_listener=...)`."""
