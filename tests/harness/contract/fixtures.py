"""Fixtures for every run of the suite. Each runner defines its own `cluster`."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

import pulsar_encore as encore
from pulsar_encore.transport.interface import Transport

from .cluster import ENGINES, Cluster, Engine

# looptime's plugin requests a loop before every synchronous test. Without this line a loop is
# created and never closed, and a later test fails with a ResourceWarning.
asyncio.set_event_loop(None)


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run the tests on asyncio's event loop and on uvloop. A runner imports it to use it."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=ENGINES, ids=lambda engine: engine.name)
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each transport in turn."""
    made: Engine = request.param
    return made


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Full name of a topic that no other test uses."""
    # Underscores, because "-partition-" in a name would mean a partition.
    test = request.node.originalname[:40]
    return f"persistent://public/default/{test}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
async def client(cluster: Cluster, engine: Engine) -> AsyncIterator[encore.Client]:
    """A client of the cluster."""
    async with engine.client(cluster.url) as made:
        yield made


@pytest.fixture
async def transport(cluster: Cluster, engine: Engine) -> AsyncIterator[Transport]:
    """The transport itself, for behaviour that a consumer hides."""
    made = engine.transport(cluster.url)
    yield made
    await made.close()
