"""A native producer back to back with the development broker: no socket, and virtual time."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, ParamSpec

from pulsar_encore.devbroker import BrokerSettings, Fault, FaultPlan
from pulsar_encore.devbroker.recorder import Recorded
from pulsar_encore.options import ProducerOptions
from pulsar_encore.testing import run
from pulsar_encore.testing.dialer import BrokerDialer
from pulsar_encore.transport.native.client_settings import ClientSettings
from pulsar_encore.transport.native.connection.addresses import Address
from pulsar_encore.transport.native.connection.session import ByteTransport, Session
from pulsar_encore.transport.native.native_transport import NativeTransport
from pulsar_encore.transport.native.producer.native_producer import NativeProducer
from pulsar_encore.values.message_id import MessageId
from pulsar_encore.values.outgoing_message import OutgoingMessage
from pulsar_encore.wire import decode_batch, decode_body
from pulsar_encore.wire import pulsar_pb2 as pb

TOPIC = "persistent://public/default/t"

P = ParamSpec("P")


def virtual(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test in virtual time."""

    @functools.wraps(test)
    def in_virtual_time(*args: P.args, **kwargs: P.kwargs) -> None:
        run(test(*args, **kwargs))

    return in_virtual_time


class Network(BrokerDialer):
    """A broker in memory, and producers that connect to it.

    Args:
        faults: Faults that are active from the start.
        settings: Settings of the broker.
    """

    def __init__(self, *faults: Fault, settings: BrokerSettings | None = None) -> None:
        super().__init__(settings)
        self.service.faults = FaultPlan(faults)
        self.dialled = 0

    async def dial(
        self, address: Address, make: Callable[[ByteTransport], Session], timeout_s: float
    ) -> Session:
        session = await super().dial(address, make, timeout_s)
        self.dialled += 1
        return session

    def transport(self, **settings: Any) -> NativeTransport:
        return NativeTransport("pulsar://memory:1", ClientSettings(**settings), dialer=self)

    async def producer(
        self, topic: str = TOPIC, *, client: NativeTransport | None = None, **options: Any
    ) -> NativeProducer:
        client = client or self.transport()
        made = await client.create_producer(ProducerOptions(topic=topic, **options))
        assert isinstance(made, NativeProducer)
        return made

    def stored(self, topic: str = TOPIC) -> list[tuple[pb.MessageMetadata, Any, bytes]]:
        """Return (entry metadata, message metadata, payload) of each message, in order."""
        messages: list[tuple[pb.MessageMetadata, Any, bytes]] = []
        for entry in self.service.catalogue.topic(topic).log.entries:
            metadata, payload, _ = decode_body(entry.body)
            if not metadata.HasField("num_messages_in_batch"):
                messages.append((metadata, metadata, bytes(payload)))
                continue
            inside = decode_batch(payload, metadata.num_messages_in_batch)
            messages += [(metadata, single, bytes(each)) for single, each in inside]
        return messages

    def payloads(self, topic: str = TOPIC) -> list[bytes]:
        return [payload for _, _, payload in self.stored(topic)]

    def commands(self, name: str, direction: str = "in") -> list[Any]:
        """Return the bodies of all commands of one type that the broker received or sent."""
        assert self.service.recorder is not None
        field = pb.BaseCommand.DESCRIPTOR.fields_by_number[pb.BaseCommand.Type.Value(name)].name
        recorded: Iterable[Recorded] = self.service.recorder.find(name, direction)
        return [getattr(each.command, field) for each in recorded]


def message(number: int, **more: Any) -> OutgoingMessage:
    return OutgoingMessage(payload=b"%d" % number, **more)


async def outcomes(waiting: Iterable[Awaitable[MessageId]]) -> list[MessageId | BaseException]:
    return await asyncio.gather(*waiting, return_exceptions=True)
