"""A client in memory and in virtual time, for the conftest.py of a folder to import by name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from pulsar_encore import Client
from pulsar_encore.testing import MemoryTransport, VirtualClockLoop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run the tests in virtual time: an hour's delay takes milliseconds."""
    return {"virtual": VirtualClockLoop}


@pytest.fixture
def transport() -> MemoryTransport:
    return MemoryTransport()


@pytest.fixture
async def client(transport: MemoryTransport) -> AsyncIterator[Client]:
    async with Client("pulsar://nowhere:6650", transport=transport) as made:
        yield made
