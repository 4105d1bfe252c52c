"""A client closes its connections to a real Pulsar when its event loops end."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final
from urllib.parse import urlsplit

import psutil
import pytest
import uvloop

import pulsar_encore as encore
from tests.harness.admin import Admin
from tests.harness.pulsar_server import Server

Run = Callable[[Coroutine[Any, Any, Any]], Any]

_MESSAGES: Final = 20


def _by_hand(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> Run:
    def run(main: Coroutine[Any, Any, Any]) -> Any:
        loop = new_loop()
        try:
            return loop.run_until_complete(main)
        finally:
            loop.close()

    return run


RUNS: dict[str, Run] = {
    "asyncio": asyncio.run,
    "uvloop": uvloop.run,
    "asyncio by hand": _by_hand(asyncio.new_event_loop),
    "uvloop by hand": _by_hand(uvloop.new_event_loop),
}


def connections(pulsar: Server) -> int:
    """Return the number of connections of this process to the broker."""
    port = urlsplit(pulsar.service_url).port
    return sum(
        1
        for each in psutil.Process().net_connections("tcp")
        if each.raddr and each.raddr.port == port and each.status == "ESTABLISHED"
    )


@pytest.fixture
def client(pulsar: Server) -> Iterator[encore.Client]:
    """A client that does not outlive the test, because its warnings would fail a later test."""
    made = encore.Client(pulsar.service_url, transport="native")
    yield made
    del made
    gc.collect()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", list(RUNS))
def test_the_next_run_receives_the_messages_of_an_unclosed_consumer(
    pulsar: Server, admin: Admin, client: encore.Client, topic: str, name: str
) -> None:
    run = RUNS[name]

    async def first() -> None:
        consumer = await client.subscribe(topic, "s", encore.ConsumerType.Shared)
        async with client.create_producer(topic) as producer:
            for number in range(_MESSAGES):
                await producer.send(b"%d" % number)
        await consumer.acknowledge(await consumer.receive(timeout=10))
        await asyncio.sleep(1)  # the rest has been dispatched, and the ack has been sent

    async def second() -> list[Any]:
        async with (
            asyncio.timeout(60),
            client.subscribe(topic, "s", encore.ConsumerType.Shared) as consumer,
        ):
            # The broker's keep-alive would leave the connection of the ended loop open for 30 to
            # 60 s more, with the messages that were dispatched to it.
            assert connections(pulsar) == 1
            got = set()
            while len(got) < _MESSAGES - 1:
                message = await consumer.receive()
                got.add(message.data())
                await consumer.acknowledge(message)
            stats = await asyncio.to_thread(admin.stats, topic)
            consumers: list[Any] = stats["subscriptions"]["s"]["consumers"]
            return consumers

    run(first())
    assert len(run(second())) == 1
    asyncio.run(client.close())
    assert connections(pulsar) == 0


def test_no_connection_outlives_asyncio_run(
    pulsar: Server, client: encore.Client, topic: str
) -> None:
    async def use() -> None:
        async with client.create_producer(topic) as producer:
            await producer.send(b"x")

    for _ in range(3):
        asyncio.run(use())
        assert connections(pulsar) == 0
    asyncio.run(client.close())
