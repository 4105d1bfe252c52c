"""The stock client against a broker on its own thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pulsar
import pytest

from pulsar_encore.devbroker import BrokerSettings, BrokerThread, run_in_thread


@pytest.fixture(scope="session", autouse=True)
def no_ambient_event_loop() -> None:
    """Keeps pytest-asyncio from making a loop that nobody closes (Python 3.11)."""
    asyncio.set_event_loop(None)


@pytest.fixture
def start() -> Iterator[Callable[..., BrokerThread]]:
    """Starts brokers with settings."""
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
    """A broker with Pulsar's defaults, Failover without its second of waiting."""
    return start()


@pytest.fixture
def connect() -> Iterator[Callable[..., pulsar.Client]]:
    """Makes stock clients."""
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
    """A stock client of `broker`."""
    return connect(broker)
