"""Programs of the documentation, on the transport in memory and in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from pulsar_encore import Client
from pulsar_encore.testing import MemoryTransport, VirtualClockLoop

# Tests of pages with programs that need sockets, threads or processes.
_REAL: tuple[str, ...] = (
    "test_authentication_page.py",
    "test_dead_letters_page.py",
    "test_leases_page.py",
    "test_migrating_page.py",
    "test_pub_sub_program.py",
    "test_pulsar_programs_on_a_broker.py",
    "test_spilling_page.py",
    "test_state_page.py",
    "test_transports_page.py",
)


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.path.name in _REAL:
        return {"real": asyncio.SelectorEventLoop}
    return {"virtual": VirtualClockLoop}


@pytest.fixture
def transport() -> MemoryTransport:
    return MemoryTransport()


@pytest.fixture
async def client(transport: MemoryTransport) -> AsyncIterator[Client]:
    async with Client("pulsar://nowhere:6650", transport=transport) as client:
        yield client
