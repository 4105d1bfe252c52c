"""The events that an `event_listener` of a consumer, producer or reader receives.

Annotate a listener's parameter with `ConsumerEvent`, `ProducerEvent` or `ReaderEvent`. The stock
transport reports `Connected` and `Disconnected` of consumers, without saying which of several
topics is concerned, and `Failed` of consumers and readers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Component: TypeAlias = Literal["consumer", "producer", "reader", "letter producer"]
"""The object that an event is about. A "letter producer" is a producer that a consumer uses for its
retry letter topic or a dead letter topic.
"""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection to these topics is lost. The transport reconnects by itself.

    Not sent for letter producers, which are idle most of the time.

    Attributes:
        topics: Full names of the known topics or partitions. If the transport cannot tell which of
            them lost the connection, all that may have lost it.
        component: The kind of object that lost its connection.

    Example:
        Log every lost connection of a consumer::

            def listener(event):
                if isinstance(event, Disconnected):
                    log.warning("disconnected from %s", event.topics)

            await client.subscribe("orders", "billing", event_listener=listener)
    """

    topics: tuple[str, ...]
    component: Component = "consumer"


@dataclass(frozen=True, slots=True)
class Connected:
    """The topics are attached again after `Disconnected` or `Retrying`.

    A letter producer sends this event after `Retrying` or `Failed` only.

    Attributes:
        topics: Full names, as in `Disconnected`.
        component: The kind of object that is connected again. A consumer with letter topics also
            receives this event for its letter producers: use this attribute to tell them apart.
    """

    topics: tuple[str, ...]
    component: Component = "consumer"


@dataclass(frozen=True, slots=True)
class Retrying:
    """An attempt to attach to a topic again failed; further attempts follow.

    Sent at the first failed attempt after a loss, then at growing intervals of up to 5 minutes.
    `Connected` reports success, `Failed` that no further attempt is made, and `TopicRemoved` that
    the topic was deleted. For a partition or topic that a consumer found after it subscribed,
    `TopicAdded` reports success.

    Attributes:
        topic: Full name of the topic or partition.
        error: Why the last attempt failed, with the broker's reason.
        attempts: Failed attempts since the loss, from 1.
        elapsed: Time since the loss, in seconds.
        component: The kind of object that is not attached.
    """

    topic: str
    error: Exception
    attempts: int
    elapsed: float
    component: Component = "consumer"


@dataclass(frozen=True, slots=True)
class Failed:
    """A consumer, producer, reader or letter producer has ended for good. Sent once.

    The object makes no further attempt to attach. All calls of a consumer or reader raise `error`,
    even if the event names only one of its topics, and its `message_listener` is not called again.
    Remove the cause, close the consumer or reader, and make a new one. A producer rejects every
    message to this topic or partition with `error`, and sends messages to other partitions. A
    letter producer is replaced when the next letter is sent, at most once a minute. Until then
    (`Connected`), the messages stay with the consumer and are redelivered. The event is not sent
    after `close`, nor when the client is shut down or its event loop ends.

    Attributes:
        topic: Full name of the topic or partition that failed.
        error: The cause, such as a `TopicTerminated`, with the broker's reason.
        component: The kind of object that has ended.
    """

    topic: str
    error: Exception
    component: Component = "consumer"


@dataclass(frozen=True, slots=True)
class BecameActive:
    """Failover: this consumer receives the messages of the topic from now on.

    Sent after the subscription and after each reconnect.

    Attributes:
        topic: Full name of the topic or partition.
    """

    topic: str


@dataclass(frozen=True, slots=True)
class BecameInactive:
    """Failover: another consumer receives the messages of the topic, and this one is on standby.

    Attributes:
        topic: Full name of the topic or partition.
    """

    topic: str


@dataclass(frozen=True, slots=True)
class EndOfTopic:
    """The topic was terminated, and this subscription has acked all of its messages.

    Attributes:
        topic: Full name of the topic or partition.
    """

    topic: str


@dataclass(frozen=True, slots=True)
class TopicAdded:
    """A new partition, or a new topic that matches the pattern, is read from now on.

    Attributes:
        topic: Full name of the topic or partition.
        component: The kind of object that reads the topic.
    """

    topic: str
    component: Component = "consumer"


@dataclass(frozen=True, slots=True)
class TopicRemoved:
    """A topic or partition was deleted, or the topic was created again with other partitions.

    The topic is neither read nor written any more, and no `Connected` event follows for it. If the
    topic has other partitions now, a consumer receives a `TopicAdded` event for each.

    Attributes:
        topic: Full name of the topic or partition.
        component: The kind of object that used the topic.
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
