"""Dead letters on the transport in memory, in virtual time, or on a development broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
from letters_kit import DEAD

import pulsar_encore as encore
from pulsar_encore.deadletters import DeadLetters
from pulsar_encore.testing import VirtualClockLoop
from tests.harness.memory_fixtures import client, transport

__all__ = ["client", "dead", "pytest_asyncio_loop_factories", "transport"]

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
def dead(client: encore.Client) -> DeadLetters:
    return DeadLetters(client, DEAD)
