"""A client on the transport in memory whose metrics go to a registry of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry

from pulsar_encore import Client, prometheus
from pulsar_encore.testing import MemoryTransport, VirtualClockLoop
from tests.harness.memory_fixtures import transport

__all__ = ["pytest_asyncio_loop_factories", "transport"]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"virtual": VirtualClockLoop}


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest_asyncio.fixture
async def client(transport: MemoryTransport, registry: CollectorRegistry) -> AsyncIterator[Client]:
    observers = [prometheus.Metrics(registry)]
    async with Client("memory://", transport=transport, observers=observers) as client:
        yield client
