"""Consumers and producers of the broker, with their sessions."""

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
        address: Address of the client.
        writable: False while the client leaves too many bytes unread.
        consumers: Consumers by the client's ids.
        producers: Producers by the client's ids.
        closed_producers: Ids of producers that the broker closed. SENDs in flight still name them.
        watchers: Watchers of topic lists by the client's ids.
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
        """Queue a command, given as its protobuf message."""

    def send_raw(self, name: str, command: bytes, body: bytes = b"") -> None:
        """Queue an encoded command and its body."""

    def probe(self, then: Callable[[], None]) -> None:
        """Ping the client; call `then` when it answers, or is dropped without an answer."""

    def retry(self, frame: Frame, handle: Callable[[], None]) -> None:
        """Handle a command again; errors are answered as at its first handling."""

    def close(self) -> None:
        """Write the queued bytes, then close."""

    def abort(self) -> None:
        """Close at once; the client sees a lost connection."""


@dataclass(slots=True, eq=False)
class AttachedConsumer:
    """A consumer and its session. `since_ms` is the wall time of SUBSCRIBE."""

    id: int
    session: Peer
    state: BrokerTopic
    subscription: Subscription
    consumer: SubscribedConsumer
    encoder: MessageEncoder
    since_ms: int


@dataclass(slots=True, eq=False)
class AttachedProducer:
    """A producer and its session. `id` is the client's id."""

    id: int
    session: Peer
    state: BrokerTopic
    publisher: Publisher
    encoder: ReceiptEncoder
