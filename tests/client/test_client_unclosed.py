"""Clients, consumers, producers and readers that are never closed: warnings and effects."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import warnings
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore.devbroker import BrokerThread

EARLIEST = encore.MessageId.earliest
MakeClient = Callable[..., encore.Client]

CREATE: dict[str, Callable[[encore.Client, str], Awaitable[Any]]] = {
    "producer": lambda client, topic: client.create_producer(topic),
    "consumer": lambda client, topic: client.subscribe(topic, "audit"),
    "reader": lambda client, topic: client.create_reader(topic, EARLIEST),
}


async def resource_warnings(use: Callable[[], Awaitable[None]], deadline_s: float = 3) -> list[str]:
    """Call `use`, and return the texts of the warnings up to the garbage collection after it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # Within this context, because Python may collect garbage at any time.
        await use()
        for _ in range(int(deadline_s / 0.05)):
            gc.collect()
            if caught:
                break
            await asyncio.sleep(0.05)
        gc.collect()
    return sorted(str(each.message) for each in caught if each.category is ResourceWarning)


@pytest.mark.filterwarnings("ignore:the client of:ResourceWarning")
async def test_objects_stay_usable_after_the_last_reference_to_their_client(
    make_client: MakeClient, topic: str
) -> None:
    clients = [make_client() for _ in CREATE]
    watched = [weakref.ref(each) for each in clients]
    made = [await create(clients.pop(), topic) for create in CREATE.values()]
    producer, consumer, reader = made
    gc.collect()
    await asyncio.sleep(0.2)
    sent = await producer.send(b"x")
    async with asyncio.timeout(5):
        received = await consumer.receive()
        assert (received.data(), (await reader.read_next()).data()) == (b"x", b"x")
    assert received.message_id() == sent
    await consumer.acknowledge(received)
    for each in made:
        assert each.is_connected()
        await each.close()
    made.clear()
    del each, producer, consumer, reader, received
    async with asyncio.timeout(10):  # here, where their warnings are ignored
        while any(client() is not None for client in watched):
            gc.collect()
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("kind", CREATE)
async def test_a_warning_names_an_unclosed_object_when_it_is_collected(
    make_client: MakeClient, topic: str, kind: str
) -> None:
    async def forget() -> None:
        await CREATE[kind](make_client(), topic)

    client, made = await resource_warnings(forget)
    assert client.startswith("the client of pulsar://127.0.0.1")
    assert made.startswith(f"the {kind} of ") and topic in made
    assert "audit" in made or kind != "consumer"
    assert "close()" in made


@pytest.mark.parametrize("end", ["each", "client", "shutdown", "unsubscribe"])
async def test_closed_objects_cause_no_warning(
    make_client: MakeClient, topic: str, end: str
) -> None:
    async def use() -> None:
        client = make_client()
        made = [await create(client, topic) for create in CREATE.values()]
        if end == "unsubscribe":
            await made[1].unsubscribe()
        if end == "each":
            for each in made:
                await each.close()
        if end == "shutdown":
            client.shutdown()
        else:
            await client.close()

    assert await resource_warnings(use, 0.2) == []


LEFT_OPEN = """
import asyncio, sys
import pulsar_encore as encore

async def main():
    quiet = encore.ConsoleLogger(encore.LoggerLevel.Error)
    client = encore.Client(sys.argv[1], transport="stock", logger=quiet)
    made = [
        await client.create_producer("left"),
        await client.subscribe("left", "audit"),
        await client.create_reader("left", encore.MessageId.earliest),
    ]
    if sys.argv[2] == "closed":
        await client.close()
    return client, made

loop = asyncio.new_event_loop()
left = loop.run_until_complete(main())
loop.close()
"""


@pytest.mark.parametrize("how", ["left", "closed"])
def test_a_process_that_ends_warns_of_each_unclosed_object(broker: BrokerThread, how: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", "-c", LEFT_OPEN, broker.url, how],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    named = sorted(
        line.partition("ResourceWarning: ")[2].split(" of ")[0]
        for line in ended.stderr.splitlines()
        if "was never closed" in line
    )
    expected = ["the client", "the consumer", "the producer", "the reader"]
    assert (ended.returncode, named) == (0, expected if how == "left" else []), ended.stderr


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_loop_that_ends_without_close_leaves_no_consumer_behind(
    make_client: MakeClient, broker: BrokerThread, topic: str
) -> None:
    """It would hold messages for as long as the process lives."""
    waiting = 2000

    async def rude() -> encore.Client:
        client = make_client()
        await client.subscribe(topic, "s", encore.ConsumerType.Shared, receiver_queue_size=100)
        async with await client.create_producer(
            topic, max_pending_messages=2000, block_if_queue_full=True
        ) as producer:
            await asyncio.gather(*(producer.send(b"x") for _ in range(waiting)))
        return client

    client = asyncio.run(rude())

    async def others() -> None:
        async with (
            make_client() as another,
            asyncio.timeout(20),
            await another.subscribe(topic, "s", encore.ConsumerType.Shared) as consumer,
        ):
            for _ in range(waiting):
                await consumer.acknowledge(await consumer.receive())

    asyncio.run(others())
    assert broker.backlog(topic, "s") == 0
    client.shutdown()
    del client
    gc.collect()
