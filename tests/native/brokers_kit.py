"""Several addresses in one event loop: brokers in memory, and doubles that answer like brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from google.protobuf.message import Message

from pulsar_encore.devbroker import BrokerSettings
from pulsar_encore.errors import TransportTimeout
from pulsar_encore.exceptions import ConnectError
from pulsar_encore.testing.dialer import BrokerDialer
from pulsar_encore.transport.native.client_settings import ClientSettings
from pulsar_encore.transport.native.connection.addresses import Address
from pulsar_encore.transport.native.connection.cluster_service import (
    ClusterService,
    ConnectionCredentials,
)
from pulsar_encore.transport.native.connection.pool import ConnectionPool
from pulsar_encore.transport.native.connection.session import ByteTransport, Session
from pulsar_encore.wire import PROTOCOL_VERSION, frames, pb


class Brokers:
    """Network addresses by ``host:port`` (a `Dialer`).

    Attributes:
        brokers: Addresses with a broker in memory.
        doubles: Addresses with a `Double`.
        silent: Addresses that accept a connection and never write.
        dead: Addresses that never accept.
        dialed: The addresses that were dialed, in order.
    """

    def __init__(self, **settings: BrokerSettings | None) -> None:
        self.brokers = {f"{name}:6650": BrokerDialer(each) for name, each in settings.items()}
        self.doubles: dict[str, Double] = {}
        self.silent: set[str] = set()
        self.dead: set[str] = set()
        self.dialed: list[str] = []

    async def dial(
        self, address: Address, make: Callable[[ByteTransport], Session], timeout_s: float
    ) -> Session:
        where = address.host_port
        self.dialed.append(where)
        if where in self.dead:
            await asyncio.sleep(timeout_s)
            raise TransportTimeout(f"no connection to {address} within {timeout_s:g} s")
        if where in self.silent:
            return make(Deaf())
        if where in self.doubles:
            return self.doubles[where].connect(make)
        if where not in self.brokers:
            raise ConnectError(f"no connection to {address}: refused")
        return await self.brokers[where].dial(address, make, timeout_s)

    def pool(
        self,
        url: str,
        *,
        settings: ClientSettings | None = None,
        credentials: ConnectionCredentials | None = None,
        seed: int = 1,
    ) -> ConnectionPool:
        return ConnectionPool(
            ClusterService.at(url, self, credentials), settings or ClientSettings(), Random(seed)
        )


class Deaf:
    """A socket with a silent peer."""

    def __init__(self) -> None:
        self.ended = ""

    def write(self, data: bytes) -> None:
        pass

    def close(self) -> None:
        self.ended = "closed"

    def abort(self) -> None:
        self.ended = "aborted"


class Double:
    """A peer that answers each command by a function, like a broker or a proxy.

    Attributes:
        received: The received commands, of all connections.
        sessions: The client's ends of the connections.
    """

    def __init__(self, answer: Callable[[pb.BaseCommand], list[Message] | bytes]) -> None:
        self._answer = answer
        self.received: list[pb.BaseCommand] = []
        self.sessions: list[Session] = []

    def connect(self, make: Callable[[ByteTransport], Session]) -> Session:
        line = _Line(self)
        line.session = make(line)
        self.sessions.append(line.session)
        return line.session

    def answer(self, command: pb.BaseCommand) -> bytes:
        self.received.append(command)
        answers = self._answer(command)
        return answers if isinstance(answers, bytes) else b"".join(map(frames.encode, answers))


class _Line:
    """A connection to a double (`ByteTransport`)."""

    session: Session

    def __init__(self, double: Double) -> None:
        self._double = double
        self._decoder = frames.FrameDecoder()
        self._loop = asyncio.get_running_loop()

    def write(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            self._loop.call_soon(self._arrive, self._double.answer(frame.command))

    def _arrive(self, data: bytes) -> None:
        if data == HANG_UP:
            self.session.lost(None)
        elif data:
            self.session.receive(data)

    def close(self) -> None:
        self._loop.call_soon(self.session.lost, None)

    abort = close


# : A double that gives this answer closes the connection.
HANG_UP = b"hang up"


def lookup_answer(command: pb.BaseCommand, **fields: Any) -> pb.CommandLookupTopicResponse:
    """Answer a LOOKUP with Connect, unless `fields` have another response."""
    fields = {"response": pb.CommandLookupTopicResponse.Connect, **fields}
    return pb.CommandLookupTopicResponse(request_id=command.lookupTopic.request_id, **fields)


def welcome(command: pb.BaseCommand) -> list[Message]:
    """Answer CONNECT and PING like every broker."""
    if command.type == pb.BaseCommand.CONNECT:
        return [pb.CommandConnected(server_version="double", protocol_version=PROTOCOL_VERSION)]
    if command.type == pb.BaseCommand.PING:
        return [pb.CommandPong()]
    return []
