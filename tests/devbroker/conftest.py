"""The stock transport's C++ client against a broker on its own thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pulsar
import pytest

from pulsar_encore.devbroker import BrokerSettings, BrokerThread, run_in_thread


@pytest.fixture(scope="session", autouse=True)
def no_ambient_event_loop() -> None:
    """Keep pytest-asyncio from creating a loop that is never closed (Python 3.11)."""
    asyncio.set_event_loop(None)


@pytest.fixture
def start() -> Iterator[Callable[..., BrokerThread]]:
    """Return a function that starts brokers with settings."""
    running = []

    def begin(**settings: object) -> BrokerThread:
        fields: dict[str, object] = {"failover_delay_ms": 0, **settings}
        running.append(run_in_thread(BrokerSettings(**fields)))  # type: ignore[arg-type]
        return running[-1]

    yield begin
    for one in running:
        one.close()


@pytest.fixture
def broker(start: Callable[..., BrokerThread]) -> BrokerThread:
    """Return a broker with Pulsar's defaults, but Failover switches at once, not after 1 s."""
    return start()


@pytest.fixture
def connect() -> Iterator[Callable[..., pulsar.Client]]:
    """Return a function that creates C++ clients."""
    clients = []

    def begin(broker: BrokerThread, **options: object) -> pulsar.Client:
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        clients.append(pulsar.Client(broker.url, logger=quiet, **options))
        return clients[-1]

    yield begin
    for one in clients:
        one.close()


@pytest.fixture
def client(broker: BrokerThread, connect: Callable[..., pulsar.Client]) -> pulsar.Client:
    """Return a C++ client of `broker`."""
    return connect(broker)
