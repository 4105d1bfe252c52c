"""The brokers and transports that the suite runs on.

`Cluster` lists the administrative operations that both brokers have, and `ENGINES` the transports.
A test that uses nothing else runs unchanged on every pair of them. A difference between the brokers
is a bug of the development broker.
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

# The C++ client has one logger for a process: the first one. Tests provoke errors.
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


@dataclass(frozen=True, slots=True)
class Place:
    """A namespace with policies of its own.

    Args:
        url: The broker to connect to.
        namespace: `tenant/namespace` for new topics.
    """

    url: str
    namespace: str

    def topic(self, name: str) -> str:
        """Return the full name of a topic in this namespace."""
        return f"persistent://{self.namespace}/{name.rpartition('/')[2]}"


class Cluster(Protocol):
    """A broker with Pulsar's defaults, and its administration."""

    @property
    def url(self) -> str: ...

    async def create_topic(self, topic: str) -> None: ...

    async def create_partitioned_topic(self, topic: str, partitions: int) -> None: ...

    async def delete_topic(self, topic: str) -> None:
        """Delete an unpartitioned topic without producers and consumers."""

    async def unload(self, topic: str) -> None:
        """Close the topic on its broker. Clients reconnect."""

    async def terminate(self, topic: str) -> None: ...

    async def backlog(self, topic: str, subscription: str) -> int:
        """Return the unacked entries, over all partitions."""

    async def place(self, *, window: int | None = None, creation: bool = True) -> Place:
        """Return a namespace with another unacked window for a consumer, or without topic
        auto-creation.
        """


@dataclass(frozen=True, slots=True)
class Engine:
    """A transport under test.

    Limits of a transport that no caller depends on are declared here, the others in its
    `capabilities`. Tests check both.

    Attributes:
        sees_ack_sets: Deliveries contain the broker's ack set.
        zero_queue: It supports receiver_queue_size 0.
        acks_first: After a reconnect, acks of the delivery listener are sent before any permit.
        keeps_sought_time: After a reconnect, a reader continues at the time of its last seek.
        last_id_of_readers: A reader can request the last message id.
        seeks_many: During a seek over several topics, no message is dropped before the last topic
            has finished.
        whole_entries: A batch is delivered as one delivery.
        all_schemas: It registers schemas of any type. Otherwise number schemas are not registered,
            and a key-value schema ends the process.
        sealed_chunks: It can deliver chunked messages that cannot be decrypted. Otherwise the C++
            client writes past the end of a buffer.
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
        """Return a transport for `url`."""
        return self.make(ClientOptions(service_url=url, logger=QUIET, **options))

    def client(self, url: str, **options: Any) -> encore.Client:
        """Return a client of `url` over this transport."""
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
