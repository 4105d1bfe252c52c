"""Consumers on the transport in memory, in virtual time: an hour's delay takes milliseconds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from consumer_kit import TOPIC
from durable_kit import Host

from pulsar_encore import Consumer
from pulsar_encore.consumer.consumer_factory import assemble, open_transport_consumer
from pulsar_encore.options import ConsumerOptions, ConsumerType, InitialPosition
from pulsar_encore.testing import MemoryTransport
from tests.harness.memory_fixtures import client, pytest_asyncio_loop_factories, transport

__all__ = ["client", "host", "pytest_asyncio_loop_factories", "subscribe", "transport"]


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
