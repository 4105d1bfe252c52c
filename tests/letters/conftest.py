"""Letters in memory and virtual time; the modules named test_stock_* on the development broker."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

import pytest
import pytest_asyncio
from forwarding_kit import QUIET

import pulsar_encore as encore
from pulsar_encore.devbroker import BrokerSettings, BrokerThread
from pulsar_encore.testing import VirtualClockLoop
from tests.harness.memory_fixtures import client, transport

__all__ = ["broker", "client", "pytest_asyncio_loop_factories", "stock", "topic", "transport"]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.path.name.startswith("test_stock_"):
        return {"real": asyncio.SelectorEventLoop}
    return {"virtual": VirtualClockLoop}


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    """One broker for a module; topics are each test's own."""
    with BrokerThread(BrokerSettings(failover_delay_ms=50)) as broker:
        yield broker


@pytest_asyncio.fixture
async def stock(broker: BrokerThread) -> AsyncIterator[encore.Client]:
    async with encore.Client(
        broker.url, transport="stock", logger=QUIET, operation_timeout_seconds=5
    ) as client:
        yield client
    broker.faults = None


@pytest.fixture
def topic() -> str:
    """Full name of a topic that no other test has."""
    return f"persistent://public/default/t{uuid.uuid4().hex[:12]}"
