"""A client releases its threads and file descriptors, even after errors and cancellations."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import psutil
import pytest

import pulsar_encore as encore
from pulsar_encore.devbroker import BrokerThread, Fault, FaultPlan

CREATE: dict[str, Callable[[encore.Client, str], Awaitable[Any]]] = {
    "producer": lambda client, topic: client.create_producer(topic),
    "consumer": lambda client, topic: client.subscribe(
        topic, "s", consumer_type=encore.ConsumerType.Shared
    ),
    "with retry letters": lambda client, topic: client.subscribe(
        topic, "s", consumer_type=encore.ConsumerType.Shared, consumer_name="n", retry_enable=True
    ),
    "reader": lambda client, topic: client.create_reader(topic, encore.MessageId.earliest),
}
ROUNDS = 4


def taken() -> tuple[int, int]:
    process = psutil.Process()
    return process.num_threads(), process.num_fds()


async def kept_since(before: tuple[int, int]) -> tuple[int, int]:
    """Return how many more threads and files are open than before; wait up to 15 s for them."""
    deadline = time.monotonic() + 15
    while True:
        threads, files = (now - then for now, then in zip(taken(), before, strict=True))
        if (threads <= 0 and files <= 0) or time.monotonic() > deadline:
            return max(threads, 0), max(files, 0)
        await asyncio.sleep(0.02)


async def cancelled_while_made(
    client: encore.Client, topic: str, create: Callable[..., Awaitable[Any]]
) -> None:
    creating = asyncio.ensure_future(create(client, topic))
    await asyncio.sleep(0.03)
    creating.cancel()
    (made,) = await asyncio.gather(creating, return_exceptions=True)
    if not isinstance(made, BaseException):  # a slow machine: it was there already
        await made.close()


async def made_and_closed(
    client: encore.Client, topic: str, create: Callable[..., Awaitable[Any]]
) -> None:
    await (await create(client, topic)).close()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("kind", CREATE)
@pytest.mark.parametrize("do", [made_and_closed, cancelled_while_made])
@pytest.mark.parametrize("end", ["close", "shutdown", "dropped"])
async def test_clients_that_end_keep_no_thread_no_file_and_no_memory(
    make_client: Callable[..., encore.Client],
    topic: str,
    broker: BrokerThread,
    kind: str,
    do: Callable[..., Awaitable[None]],
    end: str,
) -> None:
    async def round_() -> None:
        broker.faults = FaultPlan(
            [
                Fault(kind="delay", command=answer, delay_ms=80, times=2)
                for answer in ("SUCCESS", "PRODUCER_SUCCESS")
                if do is cancelled_while_made
            ]
        )
        client = make_client()
        clients.append(weakref.ref(client))
        await do(client, topic, CREATE[kind])
        if end == "close":
            await client.close()
        elif end == "shutdown":
            client.shutdown()

    clients: list[weakref.ref[encore.Client]] = []
    await round_()  # the first use allocates resources that stay
    gc.collect()
    await asyncio.sleep(0.2)
    before = taken()
    for _ in range(ROUNDS):
        await round_()
    gc.collect()
    assert await kept_since(before) == (0, 0)
    async with asyncio.timeout(10):  # or one would be collected, and warn, in a later test
        while any(each() is not None for each in clients):
            gc.collect()
            await asyncio.sleep(0.02)


async def test_close_waits_for_a_consumer_that_is_created_late(
    make_client: Callable[..., encore.Client], topic: str, broker: BrokerThread
) -> None:
    broker.faults = FaultPlan([Fault(kind="delay", command="SUCCESS", delay_ms=100)])
    client = make_client()
    await cancelled_while_made(client, topic, CREATE["consumer"])
    await client.close()
    async with make_client() as other:  # at once: the subscription is exclusive
        await (await other.subscribe(topic, "s")).close()
