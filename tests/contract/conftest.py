"""The contract suite against the development broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from pulsar_encore.devbroker import BrokerSettings, BrokerThread
from tests.harness.contract.cluster import Place
from tests.harness.contract.fixtures import (
    client,
    engine,
    pytest_asyncio_loop_factories,
    topic,
    transport,
)

__all__ = [
    "client",
    "cluster",
    "engine",
    "pytest_asyncio_loop_factories",
    "start_broker",
    "topic",
    "transactional_url",
    "transport",
]


class DevCluster:
    """The development broker with Pulsar's defaults."""

    def __init__(self, broker: BrokerThread, more: ExitStack) -> None:
        self._broker = broker
        self._more = more
        self.url = broker.url

    async def create_topic(self, topic: str) -> None:
        await asyncio.to_thread(self._broker.create_topic, topic)

    async def create_partitioned_topic(self, topic: str, partitions: int) -> None:
        await asyncio.to_thread(self._broker.create_partitioned_topic, topic, partitions)

    async def delete_topic(self, topic: str) -> None:
        await asyncio.to_thread(self._broker.delete_topic, topic)

    async def unload(self, topic: str) -> None:
        await asyncio.to_thread(self._broker.unload, topic)

    async def terminate(self, topic: str) -> None:
        await asyncio.to_thread(self._broker.terminate, topic)

    async def backlog(self, topic: str, subscription: str) -> int:
        return await asyncio.to_thread(self._broker.backlog, topic, subscription)

    async def place(self, *, window: int | None = None, creation: bool = True) -> Place:
        settings = BrokerSettings(auto_create=creation, max_unacked_per_consumer=window or 50_000)
        broker = self._more.enter_context(BrokerThread(settings))
        return Place(broker.url, "public/default")


@pytest.fixture(scope="session")
def cluster() -> Iterator[DevCluster]:
    """One broker for the run; topics are each test's own."""
    with ExitStack() as stack:
        # Pulsar lets a Failover consumer wait a second, which proves nothing and adds up.
        broker = stack.enter_context(BrokerThread(BrokerSettings(failover_delay_ms=50)))
        yield DevCluster(broker, stack)


@pytest.fixture
def transactional_url(cluster: DevCluster) -> str:
    """A broker with a transaction coordinator."""
    return cluster.url


@pytest.fixture
def start_broker() -> Iterator[Callable[..., BrokerThread]]:
    """Brokers of one test, to be broken."""
    with ExitStack() as stack:

        def start(**settings: object) -> BrokerThread:
            fields: dict[str, object] = {"failover_delay_ms": 0, **settings}
            return stack.enter_context(BrokerThread(BrokerSettings(**fields)))  # type: ignore[arg-type]

        yield start
