"""What the suite runs over: a broker, real or for development, and the transports.

Owns `Cluster`, the few things both brokers can be told to do, and `ENGINES`. A test that uses
nothing else runs unchanged over every pair of them; a difference between the brokers is a bug of
the development broker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import pulsar_encore as encore
from pulsar_encore.options import ClientOptions
from pulsar_encore.transport.base import Capabilities, Transport
from pulsar_encore.transport.stock.transport import StockTransport

# The engine's log is global: the first logger made decides, and tests provoke errors.
QUIET = encore.ConsoleLogger(encore.LoggerLevel.Error)


@dataclass(frozen=True, slots=True)
class Place:
    """Where topics live under rules of their own.

    Args:
        url: The broker to connect to.
        namespace: `tenant/namespace` to make topics in.
    """

    url: str
    namespace: str

    def topic(self, name: str) -> str:
        """Full name of a topic here."""
        return f"persistent://{self.namespace}/{name.rpartition('/')[2]}"


class Cluster(Protocol):
    """A broker with Pulsar's defaults, and its administration."""

    @property
    def url(self) -> str: ...

    async def create_topic(self, topic: str) -> None: ...

    async def create_partitioned_topic(self, topic: str, partitions: int) -> None: ...

    async def unload(self, topic: str) -> None:
        """Close the topic on its broker; clients come again."""

    async def terminate(self, topic: str) -> None: ...

    async def backlog(self, topic: str, subscription: str) -> int:
        """Entries not acked, over all partitions."""

    async def place(self, *, window: int | None = None, creation: bool = True) -> Place:
        """Somewhere with another unacked window a consumer, or no topics made by themselves."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A transport under test."""

    name: str
    make: Callable[[ClientOptions], Transport]
    capabilities: Capabilities

    def transport(self, url: str, **options: Any) -> Transport:
        """A connection to `url`."""
        return self.make(ClientOptions(service_url=url, logger=QUIET, **options))

    def client(self, url: str, **options: Any) -> encore.Client:
        """A client of `url` over this transport."""
        return encore.Client(url, transport=self.transport(url, **options))


ENGINES = [Engine("stock", StockTransport, StockTransport.capabilities)]
