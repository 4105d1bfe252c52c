"""The development broker of a history, and processes that can be cut off or killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Final

import pulsar_encore as encore
from pulsar_encore.devbroker import BrokerSettings
from pulsar_encore.errors import ConnectError
from pulsar_encore.testing.dialer import BrokerDialer, MemoryConnection, whole
from pulsar_encore.transport.native.client_settings import ClientSettings
from pulsar_encore.transport.native.connection.addresses import Address
from pulsar_encore.transport.native.connection.session import ByteTransport, Session
from pulsar_encore.transport.native.native_transport import NativeTransport

INPUT: Final = "persistent://public/default/in"
OUTPUT: Final = "persistent://public/default/out"
SUBSCRIPTION: Final = "s"
_URL: Final = "pulsar://memory:6650"


class Network:
    """A broker in the running loop, and its faults."""

    def __init__(self, seed: int, rewinds_overtaken: float) -> None:
        settings = BrokerSettings(
            failover_delay_ms=50,
            rewind_overtaken=rewinds_overtaken,
            rewind_seed=seed,
            record=False,
        )
        self.dialer: BrokerDialer = BrokerDialer(settings)
        self.service = self.dialer.service

    async def outage(self, seconds: float) -> None:
        self.dialer.reachable = False
        self.dialer.drop()
        await asyncio.sleep(seconds)
        self.dialer.reachable = True

    async def kill_broker(self, seconds: float) -> None:
        """End all connections, and lose the state that the broker has only in memory."""
        self.dialer.reachable = False
        self.dialer.drop()
        for state in list(self.service.catalogue.topics.values()):
            self.service.unload(state)
        await asyncio.sleep(seconds)
        self.dialer.reachable = True

    async def unload_coordinator(self, seconds: float) -> None:
        self.service.coordinator.loaded = False
        await asyncio.sleep(seconds)
        self.service.coordinator.loaded = True

    def unload(self, topic: str) -> None:
        for state in self.service.catalogue.states(topic):
            self.service.unload(state)

    def heal(self) -> None:
        """End all faults."""
        self.service.faults = None
        self.service.coordinator.loaded = True
        self.dialer.reachable = True

    def backlog(self) -> int:
        """Return the unacked entries of the input topic."""
        states = self.service.catalogue.states(INPUT)
        found = [each.subscriptions.get(SUBSCRIPTION) for each in states]
        return sum(1 if each is None else each.backlog for each in found)


class Process:
    """One client with connections of its own.

    Args:
        name: Seeds its random choices.
    """

    def __init__(self, network: Network, operation_timeout_s: float, name: str) -> None:
        self._dialer = _ProcessDialer(network.dialer)
        settings = ClientSettings(operation_timeout_s=operation_timeout_s, max_backoff_s=5.0)
        self._transport = NativeTransport(_URL, settings, dialer=self._dialer, rng=Random(name))
        self.client: encore.Client = encore.Client(_URL, transport=self._transport)

    def cut(self) -> None:
        """End its connections. It may connect again."""
        self._dialer.cut()

    def kill(self) -> None:
        """End it without a word to the broker: nothing that it writes from now on arrives."""
        self._dialer.isolate()
        self._transport.shutdown()

    def isolate(self) -> None:
        """Cut it off from the broker. The process itself does not notice."""
        self._dialer.isolate()

    def rejoin(self) -> None:
        """End the isolation. The process notices that its connections have ended."""
        self._dialer.rejoin()


class _ProcessDialer:
    """A `Dialer` that knows its connections."""

    make_codecs = BrokerDialer.make_codecs

    def __init__(self, dialer: BrokerDialer) -> None:
        self._dialer = dialer
        self._connections: list[MemoryConnection] = []
        self._isolated = False

    async def dial(
        self, address: Address, make: Callable[[ByteTransport], Session], timeout_s: float
    ) -> Session:
        await asyncio.sleep(0)
        if self._isolated or not self._dialer.reachable:
            raise ConnectError(f"no connection to {address}: refused")
        loop = asyncio.get_running_loop()
        connection = MemoryConnection(loop, whole, self._dialer.lines)
        self._connections.append(connection)
        return self._dialer.connect(connection, address, make)

    def cut(self) -> None:
        connections, self._connections = self._connections, []
        for each in connections:
            each.cut()

    def isolate(self) -> None:
        self._isolated = True
        for each in self._connections:
            each.forget()

    def rejoin(self) -> None:
        self._isolated = False
        connections, self._connections = self._connections, []
        for each in connections:
            each.client.lost(None)
