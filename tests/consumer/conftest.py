"""Consumers on the transport in memory, in virtual time: an hour's delay takes milliseconds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from consumer_kit import TOPIC
from durable_kit import Host

from pulsar_encore import Client, Consumer
from pulsar_encore.consumer.consumer_factory import assemble, open_transport_consumer
from pulsar_encore.options import ConsumerOptions, ConsumerType, InitialPosition
from pulsar_encore.testing import MemoryTransport, VirtualClockLoop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"virtual": VirtualClockLoop}


@pytest.fixture
def transport() -> MemoryTransport:
    return MemoryTransport()


@pytest.fixture
async def client(transport: MemoryTransport) -> AsyncIterator[Client]:
    async with Client("pulsar://nowhere:6650", transport=transport) as client:
        yield client


@pytest.fixture
async def host(transport: MemoryTransport, tmp_path: Path) -> AsyncIterator[Host]:
    host = Host(transport, tmp_path / "disk")
    yield host
    await host.kill()


@pytest.fixture
def subscribe(transport: MemoryTransport) -> Callable[..., Awaitable[Consumer]]:
    """Makes a Shared consumer of `TOPIC`, from the earliest message, with options."""

    async def begin(*topics: str, **options: Any) -> Consumer:
        options.setdefault("consumer_type", ConsumerType.Shared)
        options.setdefault("initial_position", InitialPosition.Earliest)
        options.setdefault("subscription_name", "s")
        checked = ConsumerOptions(topics=topics or (TOPIC,), pattern=None, **options)
        transport_consumer = await open_transport_consumer(transport, checked)
        return Consumer(assemble(transport_consumer, checked))

    return begin
