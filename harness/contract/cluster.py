"""What the suite runs over: a broker, real or for development, and the transports.

Owns `Cluster`, the few things both brokers can be told to do, and `ENGINES`. A test that uses
nothing else runs unchanged over every pair of them; a difference between the brokers is a bug of
the development broker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pulsar

import pulsar_encore as encore
from pulsar_encore.options import ClientOptions
from pulsar_encore.transport.interface import Capabilities, Transport
from pulsar_encore.transport.native.native_transport import NativeTransport
from pulsar_encore.transport.native.service_options import of_options
from pulsar_encore.transport.stock.stock_transport import StockTransport

# The engine's log is global: the first logger made decides, and tests provoke errors.
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


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

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic that is not partitioned and that nobody uses."""

    async def unload(self, topic: str) -> None:
        """Close the topic on its broker; clients come again."""

    async def terminate(self, topic: str) -> None: ...

    async def backlog(self, topic: str, subscription: str) -> int:
        """Entries not acked, over all partitions."""

    async def place(self, *, window: int | None = None, creation: bool = True) -> Place:
        """Somewhere with another unacked window a consumer, or no topics made by themselves."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A transport under test.

    What it cannot do is declared here, where nobody above it acts by that, and in its
    `capabilities`; the tests ask both.

    Attributes:
        sees_ack_sets: Deliveries tell which indexes the broker has as acked.
        zero_queue: It can run with receiver_queue_size 0.
        acks_first: After a reconnect what the sink acks leaves before any permit.
        keeps_sought_time: A reader that sought a time is there again after a loss.
        last_id_of_readers: A reader can ask for the last message id.
        seeks_many: A seek over several topics drops nothing that comes before the last has sought.
        whole_entries: A batch is delivered in one piece.
        all_schemas: It registers schemas of any type; else those of numbers are none, and one of
            pairs ends the process.
        sealed_chunks: Chunked messages that cannot be decrypted can be handed on; else they are
            written behind the end of a buffer.
    """

    name: str
    make: Callable[[ClientOptions], Transport]
    capabilities: Capabilities
    sees_ack_sets: bool = True
    zero_queue: bool = True
    acks_first: bool = True
    keeps_sought_time: bool = True
    last_id_of_readers: bool = True
    seeks_many: bool = True
    whole_entries: bool = True
    all_schemas: bool = True
    sealed_chunks: bool = True

    def transport(self, url: str, **options: Any) -> Transport:
        """A connection to `url`."""
        return self.make(ClientOptions(service_url=url, logger=QUIET, **options))

    def client(self, url: str, **options: Any) -> encore.Client:
        """A client of `url` over this transport."""
        return encore.Client(url, transport=self.transport(url, **options))


def _native(options: ClientOptions) -> Transport:
    return NativeTransport(*of_options(replace(options, logger=None)))


ENGINES = [
    Engine(
        "stock",
        StockTransport,
        StockTransport.capabilities,
        sees_ack_sets=False,
        zero_queue=False,
        acks_first=False,
        keeps_sought_time=False,
        last_id_of_readers=False,
        seeks_many=False,
        whole_entries=False,
        all_schemas=False,
        sealed_chunks=False,
    ),
    Engine("native", _native, NativeTransport.capabilities),
]
