"""Clients that move to another cluster, with open consumers and producers. Virtual time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from brokers_kit import Brokers
from native_kit import TOPIC, Collector, lookup_of, run, scopes_of, subscription

from pulsar_encore.devbroker import BrokerSettings
from pulsar_encore.exceptions import InvalidUrl
from pulsar_encore.options import ProducerOptions
from pulsar_encore.transport.native.clusters import Failover, Provided
from pulsar_encore.transport.native.connection.cluster_service import ClusterService
from pulsar_encore.transport.native.native_transport import NativeTransport
from pulsar_encore.values.outgoing_message import OutgoingMessage


class Client:
    """A client of several clusters of one broker each, with a consumer and a producer."""

    def __init__(self, *names: str, **plan: Any) -> None:
        self.network = Brokers(**dict.fromkeys(names))
        self.services = [ClusterService.at(f"pulsar://{name}", self.network) for name in names]
        chosen = {"check_s": 5.0, "failures": 1, "successes": 1, **plan}
        self.clusters = Failover(self.services, **chosen)
        self.transport = NativeTransport(self.clusters)
        self.listener = Collector()

    async def start(self) -> Client:
        self.transport_consumer: Any = await self.transport.subscribe(subscription())
        self.transport_consumer.start(self.listener)
        self.producer = await self.transport.create_producer(ProducerOptions(topic=TOPIC))
        return self

    @property
    def at(self) -> str:
        (pool,) = [scope.lookup.pool for scope in scopes_of(self.transport)]
        return pool.service.addresses[0].host

    def down(self, name: str) -> None:
        broker = self.network.brokers[f"{name}:6650"]
        broker.reachable = False
        broker.drop()

    def up(self, name: str) -> None:
        self.network.brokers[f"{name}:6650"].reachable = True

    async def works(self) -> None:
        """Assert that a message is sent and received."""
        before = len(self.listener.payloads)
        await self.producer.publish(OutgoingMessage(payload=b"x"))
        await asyncio.sleep(0.5)
        assert len(self.listener.payloads) == before + 1


def test_a_client_leaves_a_cluster_that_is_down_and_returns_later() -> None:
    async def main() -> None:
        client = await Client("one", "two").start()
        await client.works()
        await asyncio.sleep(100)
        assert client.at == "one"
        client.down("one")
        await asyncio.sleep(8)
        assert client.at == "two"
        await client.works()
        assert "failed" not in client.listener.names
        client.up("one")
        await asyncio.sleep(8)
        assert client.at == "one"
        await client.works()
        assert client.network.brokers["two:6650"].lines == []
        await client.transport.close()

    run(main())


def test_the_first_other_cluster_that_answers_is_chosen() -> None:
    async def main() -> None:
        client = await Client("one", "two", "three").start()
        client.down("two")
        client.down("one")
        await asyncio.sleep(8)
        assert client.at == "three"
        client.up("two")
        await asyncio.sleep(20)
        assert client.at == "three", "better than three is only the first"
        client.down("three")
        await asyncio.sleep(8)
        assert client.at == "two"
        await client.works()
        await client.transport.close()

    run(main())


def test_a_move_needs_the_configured_number_of_failures_or_successes_in_a_row() -> None:
    async def main() -> None:
        client = await Client("one", "two", failures=3, successes=4).start()
        client.down("one")
        await asyncio.sleep(13)
        client.up("one")
        await asyncio.sleep(5)
        client.down("one")
        await asyncio.sleep(11)
        assert client.at == "one", "two in a row, twice"
        await asyncio.sleep(5)
        assert client.at == "two"
        client.up("one")
        await asyncio.sleep(15)
        assert client.at == "two"
        await asyncio.sleep(6)
        assert client.at == "one"
        await client.transport.close()

    run(main())


def test_a_client_also_leaves_a_cluster_that_accepts_and_never_answers() -> None:
    async def main() -> None:
        client = await Client("one", "two").start()
        client.network.silent.add("one:6650")
        client.network.brokers["one:6650"].drop()
        await asyncio.sleep(20)
        assert client.at == "two"
        await client.works()
        await client.transport.close()

    run(main())


def test_a_client_stays_where_it_is_if_no_cluster_answers() -> None:
    async def main() -> None:
        client = await Client("one", "two").start()
        client.down("one")
        client.down("two")
        await asyncio.sleep(100)
        assert client.at == "one"
        client.up("one")
        await asyncio.sleep(61)
        await client.works()
        await client.transport.close()

    run(main())


def test_a_closed_client_stops_checking_clusters() -> None:
    async def main() -> None:
        client = await Client("one", "two").start()
        await client.transport.close()
        dialed = len(client.network.dialed)
        await asyncio.sleep(100)
        assert len(client.network.dialed) == dialed

    run(main())


class Provider:
    """A provider like an application would write it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.closed = 0
        self.tell: Callable[[str], None] = print

    def initial_service_info(self) -> str:
        return self.url

    def initialize(self, on_service_info_update: Callable[[str], None]) -> None:
        self.tell = on_service_info_update

    def close(self) -> None:
        self.closed += 1


def test_a_provider_can_change_the_cluster_from_any_thread() -> None:
    async def main() -> None:
        network = Brokers(one=None, two=BrokerSettings(), three=None)
        provider = Provider("pulsar://one")
        clusters = Provided(provider, lambda url: ClusterService.at(url, network))
        transport = NativeTransport(clusters)
        transport_consumer: Any = await transport.subscribe(subscription())
        transport_consumer.start(Collector())
        for name in ("two", "three"):
            thread = threading.Thread(target=provider.tell, args=(f"pulsar://{name}",))
            thread.start()
            thread.join()
            await asyncio.sleep(2)
            assert transport_consumer.is_connected()
            assert len(network.brokers[f"{name}:6650"].lines) == 1
        assert network.brokers["one:6650"].lines == network.brokers["two:6650"].lines == []
        with pytest.raises(InvalidUrl):
            provider.tell("nonsense")
        assert clusters.initial_service() is lookup_of(transport).pool.service
        await transport.close()
        transport.shutdown()
        assert provider.closed == 1
        provider.tell("pulsar://one")
        await asyncio.sleep(2)
        assert network.brokers["one:6650"].lines == []

    run(main())
