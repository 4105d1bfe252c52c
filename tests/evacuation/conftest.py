"""Evacuations on the transport in memory, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
from evacuation_kit import OldHost

from pulsar_encore import Client
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
    async with Client("pulsar://memory:6650", transport=transport) as made:
        yield made


@pytest.fixture
def host(client: Client, tmp_path: Path) -> OldHost:
    return OldHost(client, tmp_path / "state")
