"""Connect clients to a development broker on the same event loop, without a socket.

Bytes that one side writes arrive at the other side in a later pass of the loop, in pieces that a
test can choose. The loop may run in virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from ..devbroker.broker_service import BrokerService
from ..devbroker.broker_settings import BrokerSettings
from ..devbroker.clock import Clock, LoopClock
from ..devbroker.session import Session as BrokerSession
from ..errors import ConnectError
from ..transport.native.connection.addresses import Address
from ..transport.native.connection.codec_thread import CodecCalls, Codecs
from ..transport.native.connection.session import ByteTransport
from ..transport.native.connection.session import Session as ClientSession

Cuts = Callable[[bytes], Iterator[bytes]]
"""Splits written bytes into the pieces in which they arrive."""


def whole(data: bytes) -> Iterator[bytes]:
    yield data


class BrokerDialer:
    """Connects clients to a broker on the same event loop (`Dialer`).

    Args:
        settings: Settings of the broker; None for its defaults.
        cuts: Splits the bytes of both directions.
        clock: Clock of the broker; None for the clock of the running loop.

    Attributes:
        reachable: False refuses new connections.
        lines: The open connections.
        make_codecs: Decompresses large payloads on the loop: a thread takes no virtual time.
    """

    make_codecs: Callable[[], Codecs] = CodecCalls

    def __init__(
        self,
        settings: BrokerSettings | None = None,
        *,
        cuts: Cuts = whole,
        clock: Clock | None = None,
    ) -> None:
        self.service: BrokerService = BrokerService(
            settings or BrokerSettings(),
            clock or LoopClock(asyncio.get_running_loop()),
            self._outage,
        )
        self.reachable: bool = True
        self.lines: list[MemoryConnection] = []
        self._cuts = cuts

    async def dial(
        self,
        address: Address,
        make: Callable[[ByteTransport], ClientSession],
        timeout_s: float,
    ) -> ClientSession:
        await asyncio.sleep(0)
        if not self.reachable:
            raise ConnectError(f"no connection to {address}: refused")
        connection = MemoryConnection(asyncio.get_running_loop(), self._cuts, self.lines)
        return self.connect(connection, address, make)

    def connect(
        self,
        connection: MemoryConnection,
        address: Address,
        make: Callable[[ByteTransport], ClientSession],
    ) -> ClientSession:
        """Begin the sessions at both ends of a connection, and return the client's."""
        connection.client = make(ConnectionEnd(connection, to_broker=True))
        connection.broker = BrokerSession(
            self.service,
            ConnectionEnd(connection, to_broker=False),
            url=str(address),
            address="/memory:1",
        )
        self.lines.append(connection)
        return connection.client

    def drop(self) -> None:
        """Close every connection."""
        for connection in list(self.lines):
            connection.cut()

    def forget(self) -> None:
        """Close every connection at the broker only: the clients' event loop has ended."""
        for connection in list(self.lines):
            connection.forget()

    def _outage(self, seconds: float) -> None:
        self.reachable = False
        self.drop()
        asyncio.get_running_loop().call_later(seconds, self._end_outage)

    def _end_outage(self) -> None:
        self.reachable = True


class MemoryConnection:
    """One connection: its two ends and the bytes in flight."""

    client: ClientSession
    broker: BrokerSession

    def __init__(
        self, loop: asyncio.AbstractEventLoop, cuts: Cuts, lines: list[MemoryConnection]
    ) -> None:
        self._loop = loop
        self._cuts = cuts
        self._connections = lines
        self._open = True

    def carry(self, data: bytes, *, to_broker: bool) -> None:
        if not self._open:
            return
        for part in self._cuts(data):
            self._loop.call_soon(self._arrive, part, to_broker)

    def _arrive(self, data: bytes, to_broker: bool) -> None:
        if self._open:
            receive = self.broker.receive if to_broker else self.client.receive
            receive(data)

    def end(self) -> None:
        """Close the connection after the bytes in flight have arrived."""
        self._loop.call_soon(self.cut)

    def cut(self) -> None:
        """Close the connection at both ends and lose the bytes in flight."""
        if self._open:
            self._open = False
            self._connections.remove(self)
            self.client.lost(None)
            self.broker.lost()

    def forget(self) -> None:
        """Close the connection at the broker's end only."""
        if self._open:
            self._open = False
            self._connections.remove(self)
            self.broker.lost()


class ConnectionEnd:
    """The writing side of one end (`ByteTransport`)."""

    def __init__(self, connection: MemoryConnection, *, to_broker: bool) -> None:
        self._connection = connection
        self._to_broker = to_broker

    def write(self, data: bytes) -> None:
        self._connection.carry(data, to_broker=self._to_broker)

    def close(self) -> None:
        self._connection.end()

    def abort(self) -> None:
        self._connection.cut()
