"""A native client and a development broker in one loop, in virtual time, without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from random import Random
from typing import Any, TypeVar

from pulsar_encore import Client, Consumer
from pulsar_encore.consumer.consumer import ConsumerParts
from pulsar_encore.devbroker.broker_settings import BrokerSettings
from pulsar_encore.devbroker.rules.topic_log import LogEntry
from pulsar_encore.options import ConsumerType, InitialPosition, Subscription
from pulsar_encore.testing import run as run_in_virtual_time
from pulsar_encore.testing.dialer import BrokerDialer, Cuts, whole
from pulsar_encore.transport.interface import Deliveries, Delivery, each_delivery
from pulsar_encore.transport.native.client_settings import ClientSettings
from pulsar_encore.transport.native.lookup.lookup import Lookup
from pulsar_encore.transport.native.native_transport import NativeTransport
from pulsar_encore.wire import PROTOCOL_VERSION, frames, message_id, pb
from pulsar_encore.wire.entries import encode_batch, encode_body

TOPIC = "persistent://public/default/t"
URL = "pulsar://memory:6650"
CONNECTED = frames.encode(
    pb.CommandConnected(server_version="test", protocol_version=PROTOCOL_VERSION)
)

T = TypeVar("T")


def at_random(rng: Random) -> Cuts:
    """Return a strategy that cuts written bytes at random offsets."""

    def cuts(data: bytes) -> Iterator[bytes]:
        at = 0
        while at < len(data):
            end = at + rng.choice([1, 2, 3, 5, 17, 300, 5000])
            yield data[at:end]
            at = end

    return cuts


def lookup_of(transport: NativeTransport) -> Lookup:
    """Return the lookup that a transport uses in the running event loop."""
    return transport._scope().lookup


def scopes_of(transport: NativeTransport) -> list[Any]:
    """Return what a transport holds of each event loop in which it is used."""
    return list(transport._scopes.values())


def parts_of(consumer: Consumer) -> ConsumerParts:
    """Return the parts that a consumer is assembled from, for tests that drive one of them."""
    return consumer._parts


def transport_consumer_of(consumer: Consumer) -> Any:
    """Return the transport's part of a consumer; its `snapshot()` tells the state."""
    return consumer._transport_consumer


class Rig:
    """A development broker and clients that connect to it."""

    def __init__(
        self,
        broker: BrokerSettings | None = None,
        settings: ClientSettings | None = None,
        *,
        cuts: Cuts = whole,
    ) -> None:
        self.dialer = BrokerDialer(broker, cuts=cuts)
        self.settings = settings or ClientSettings()
        self.transport = NativeTransport(URL, self.settings, dialer=self.dialer)

    @property
    def service(self) -> Any:
        return self.dialer.service

    @property
    def lookup(self) -> Lookup:
        """The lookup of the transport."""
        return lookup_of(self.transport)

    def client(self) -> Client:
        """Return a client with the transport."""
        return Client(URL, transport=self.transport)

    async def subscribe(self, **fields: Any) -> tuple[Any, Collector]:
        """Subscribe with a collector as the delivery listener, and wait for queued messages."""
        transport_consumer = await self.transport.subscribe(subscription(**fields))
        listener = Collector()
        transport_consumer.start(listener)
        await settle()
        return transport_consumer, listener

    def store(
        self, *payloads: bytes, batch: bool = False, topic: str = TOPIC, **fields: Any
    ) -> None:
        """Append entries like a producer: one for each payload, or one batch with all payloads."""
        state = self.service.catalogue.topic(topic, create=True)
        if batch:
            self._append(state, payloads, fields)
            return
        for payload in payloads:
            self._append(state, payload, fields)

    def store_batch(self, *messages: tuple[pb.SingleMessageMetadata, bytes]) -> None:
        """Append a batch of messages that have metadata of their own."""
        state = self.service.catalogue.topic(TOPIC, create=True)
        self._append(state, list(messages), {})

    def _append(self, state: Any, content: bytes | Sequence[Any], fields: dict[str, Any]) -> None:
        metadata = pb.MessageMetadata(
            producer_name="p", sequence_id=7, publish_time=1_700_000_000_000, **fields
        )
        size = 0
        if isinstance(content, bytes):
            payload = content
        else:
            size = len(content)
            metadata.num_messages_in_batch = size
            payload = encode_batch(
                each if isinstance(each, tuple) else (pb.SingleMessageMetadata(), each)
                for each in content
            )
        state.log.append(
            LogEntry(encode_body(metadata, payload), batch=size, publish_ms=1_700_000_000_000)
        )
        for subscription in state.subscriptions.values():
            self.service.scheduler.wake(state, subscription)


class Collector:
    """A delivery listener that records its calls."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.calls: list[tuple[Any, ...]] = []

    def on_deliveries(self, deliveries: Deliveries) -> None:
        self.deliveries += each_delivery(deliveries)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            raise AttributeError(name)

        def record(*details: Any) -> None:
            self.calls.append((name.removeprefix("on_"), *details))

        return record

    @property
    def payloads(self) -> list[bytes]:
        return [message.data() for each in self.deliveries for message in each.messages]

    @property
    def names(self) -> list[str]:
        return [each[0] for each in self.calls]


def subscription(**fields: Any) -> Subscription:
    """Subscribe with Shared and from the first message by default."""
    made: dict[str, Any] = {
        "topics": (TOPIC,),
        "subscription_name": "s",
        "consumer_type": ConsumerType.Shared,
        "initial_position": InitialPosition.Earliest,
        **fields,
    }
    return Subscription(**made)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in virtual time."""
    return run_in_virtual_time(main)


async def settle(seconds: float = 0.01) -> None:
    """Wait until everything in flight has arrived."""
    await asyncio.sleep(seconds)


def message_frame(entry: int, body: bytes, *, ledger: int = 3, **fields: Any) -> bytes:
    """Return a MESSAGE command for consumer 1."""
    command = pb.CommandMessage(consumer_id=1, message_id=message_id(ledger, entry), **fields)
    return frames.encode_with_body(command, body)
