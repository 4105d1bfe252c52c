"""What a consumer is told besides messages. Values: one class for each, and `ConsumerEvent` of all.

Which of them come is the transport's and the broker's to say: the stock transport tells of
connections only, and of several topics not which was concerned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection to these topics is lost; the transport connects again by itself.

    Attributes:
        topics: Full names of the topics or partitions concerned, as far as they are known; where it
            cannot be told which, of all that may be.
    """

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Connected:
    """Subscribed again after a loss.

    Attributes:
        topics: As those of `Disconnected`.
    """

    topics: tuple[str, ...]


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
    """

    topic: str


ConsumerEvent: TypeAlias = (
    Connected | Disconnected | BecameActive | BecameInactive | EndOfTopic | TopicAdded
)
"""What an `event_listener` is called with."""
