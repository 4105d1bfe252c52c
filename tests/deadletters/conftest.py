"""Dead letters on the transport in memory, in virtual time, or on a development broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
from letters_kit import DEAD

import pulsar_encore as encore
from pulsar_encore.deadletters import DeadLetters
from pulsar_encore.testing import MemoryTransport, VirtualClockLoop

# looptime's plugin asks for a loop before every synchronous test. Without this hook a loop is
# created, never closed, and collected with a warning in a later test.
asyncio.set_event_loop(None)


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Use virtual time, except for tests with a broker, which has its own clock."""
    if item.path.stem.endswith("_broker"):
        return {"real": asyncio.SelectorEventLoop}
    return {"virtual": VirtualClockLoop}


@pytest.fixture
def transport() -> MemoryTransport:
    return MemoryTransport()


@pytest.fixture
async def client(transport: MemoryTransport) -> AsyncIterator[encore.Client]:
    async with encore.Client("pulsar://memory:6650", transport=transport) as made:
        yield made


@pytest.fixture
def dead(client: encore.Client) -> DeadLetters:
    return DeadLetters(client, DEAD)
