"""A development broker for the module, a client for each test, and topics of its own."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore.devbroker import BrokerSettings, BrokerThread, run_in_thread

# looptime's plugin asks for a loop before every synchronous test; without this one is made, never
# closed, and collected with a warning in whatever test comes later.
asyncio.set_event_loop(None)

_numbers = itertools.count()

#: The engine's log is global: the first logger made decides, and tests provoke errors.
QUIET = encore.ConsoleLogger(encore.LoggerLevel.Error)


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with run_in_thread(BrokerSettings()) as running:
        yield running


@pytest.fixture(autouse=True)
def no_faults(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "broker" in request.fixturenames:
        request.getfixturevalue("broker").faults = None


@pytest.fixture
def unused_port() -> int:
    """Return a port on which no server listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_numbers)}"


@pytest.fixture
def make_client(broker: BrokerThread) -> Callable[..., encore.Client]:
    def make(url: str | None = None, **options: Any) -> encore.Client:
        options.setdefault("logger", QUIET)
        options.setdefault("transport", "stock")
        return encore.Client(url or broker.url, **options)

    return make


@pytest.fixture
async def client(make_client: Callable[..., encore.Client]) -> AsyncIterator[encore.Client]:
    async with make_client() as made:
        yield made
