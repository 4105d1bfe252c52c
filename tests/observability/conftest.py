"""A client on the transport in memory, with an observer that records; in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import pytest_asyncio

from pulsar_encore import Client
from pulsar_encore.testing import MemoryTransport, VirtualClockLoop
from tests.harness.memory_fixtures import transport
from tests.observability.recording import Recording

__all__ = ["pytest_asyncio_loop_factories", "transport"]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"virtual": VirtualClockLoop}


@pytest.fixture
def seen() -> Recording:
    return Recording()


@pytest_asyncio.fixture
async def client(transport: MemoryTransport, seen: Recording) -> AsyncIterator[Client]:
    async with Client("memory://", transport=transport, observers=[seen]) as client:
        yield client
