"""What a client has attached to the broker, consumers and producers, and the session they are on.

Values and the one contract above them: `Peer` is what the handlers and the service need of a
session. Knows neither of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from google.protobuf.message import Message

from ..wire.frames import Frame
from .frame_encoders import MessageEncoder, ReceiptEncoder
from .rules.attached_consumers import SubscribedConsumer
from .rules.catalogue import BrokerTopic
from .rules.subscriptions import Subscription
from .rules.topic_producers import Publisher
from .rules.topic_watchers import Watcher


class Peer(Protocol):
    """The client at the other end of a session.

    Attributes:
        id: Number of its connection, from 1.
        url: The address it connected to, as a service url.
        address: Its own address.
        writable: False while it has too much unread.
        consumers: Its consumers, by the ids it gave them.
        producers: Its producers, likewise.
        closed_producers: Ids of producers that this side closed, for what was under way.
        watchers: Its watchers of topic lists, by the ids it gave them.
    """

    id: int
    url: str
    address: str
    writable: bool
    consumers: dict[int, AttachedConsumer]
    producers: dict[int, AttachedProducer]
    closed_producers: set[int]
    watchers: dict[int, Watcher]

    def send(self, command: Message) -> None:
        """Queue a command, given by its message."""

    def send_raw(self, name: str, command: bytes, body: bytes = b"") -> None:
        """Queue an encoded command, with what follows it."""

    def probe(self, then: Callable[[], None]) -> None:
        """Call `then` once this client has shown that it lives, or was dropped for silence."""

    def retry(self, frame: Frame, handle: Callable[[], None]) -> None:
        """Handle a command again; what is refused or broken ends as if it came now."""

    def close(self) -> None:
        """Write what is queued, then close."""

    def abort(self) -> None:
        """Close at once; the client sees a lost connection."""


@dataclass(slots=True, eq=False)
class AttachedConsumer:
    """A consumer and the session it is on.

    Args:
        id: The client's number for it.
        since_ms: When it came, wall ms.
    """

    id: int
    session: Peer
    state: BrokerTopic
    subscription: Subscription
    consumer: SubscribedConsumer
    encoder: MessageEncoder
    since_ms: int


@dataclass(slots=True, eq=False)
class AttachedProducer:
    """A producer and the session it is on.

    Args:
        id: The client's number for it.
    """

    id: int
    session: Peer
    state: BrokerTopic
    publisher: Publisher
    encoder: ReceiptEncoder
