"""Consumers and producers with their sessions."""

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
    """The client at the other end of a session, as handlers and the service see it.

    Attributes:
        id: Number of the connection, from 1.
        url: The service URL that the client connected to.
        writable: False while the client leaves too many bytes unread.
        closed_producers: Ids of producers that the broker closed. SENDs in flight still name them.
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
        """Queue a command."""

    def send_raw(self, name: str, command: bytes, body: bytes = b"") -> None:
        """Queue an encoded command."""

    def probe(self, then: Callable[[], None]) -> None:
        """Ping the client. Call `then` when it has answered or was dropped."""

    def retry(self, frame: Frame, handle: Callable[[], None]) -> None:
        """Handle a command again, and answer errors."""

    def close(self) -> None:
        """Close after the queued bytes were written."""

    def abort(self) -> None:
        """Close at once, like a network failure."""


@dataclass(slots=True, eq=False)
class AttachedConsumer:
    """A consumer. `since_ms` is the wall time of SUBSCRIBE."""

    id: int
    session: Peer
    state: BrokerTopic
    subscription: Subscription
    consumer: SubscribedConsumer
    encoder: MessageEncoder
    since_ms: int


@dataclass(slots=True, eq=False)
class AttachedProducer:
    id: int
    session: Peer
    state: BrokerTopic
    publisher: Publisher
    encoder: ReceiptEncoder
