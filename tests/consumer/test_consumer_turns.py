"""The loop runs on: no receiving path keeps it for more than a few ms, whatever is queued.

Work is time that passes on the virtual clock without a suspension, so the longest silence is exact.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from consumer_kit import TOPIC, Subscribe, close_without_backlog, now_s, put_numbers

from pulsar_encore import (
    BatchReceivePolicy,
    Client,
    ClosedError,
    Consumer,
    Message,
    MessageId,
    ReceiveTimeout,
)
from pulsar_encore.consumer.settlement.ownership import Settleable
from pulsar_encore.consumer.settlement.settlement import Settlement
from pulsar_encore.eventloop.fair_yield import SLICE_S
from pulsar_encore.testing import MemoryTransport

WORK_S = 0.002
COUNT = 300


def work(seconds: float = WORK_S) -> None:
    loop: Any = asyncio.get_running_loop()
    loop.advance(seconds)


class Silence:
    """The longest time without a pass of the loop, in seconds."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def listen(self) -> None:
        last_s = now_s()
        while True:
            await asyncio.sleep(0)
            self.longest_s = max(self.longest_s, now_s() - last_s)
            last_s = now_s()


@asynccontextmanager
async def silence() -> AsyncIterator[Silence]:
    heard = Silence()
    task = asyncio.ensure_future(heard.listen())
    await asyncio.sleep(0)
    try:
        yield heard
        await asyncio.sleep(0)
    finally:
        task.cancel()


async def receiving(consumer: Consumer) -> None:
    for _ in range(COUNT):
        await consumer.receive()
        work()


async def receiving_with_a_timeout(consumer: Consumer) -> None:
    for _ in range(COUNT):
        await consumer.receive(timeout=1)
        work()


async def receiving_and_acking(consumer: Consumer) -> None:
    for _ in range(COUNT):
        message = await consumer.receive()
        work()
        await consumer.acknowledge(message)


async def iterating(consumer: Consumer) -> None:
    left = COUNT
    async for message in consumer:
        work()
        await consumer.acknowledge(message)
        left -= 1
        if not left:
            return


async def small_batches(consumer: Consumer) -> None:
    got = 0
    while got < COUNT:
        batch = await consumer.batch_receive()
        got += len(batch)
        work()


async def acking_a_batch_one_by_one(consumer: Consumer) -> None:
    for message in [await consumer.receive() for _ in range(COUNT)]:
        work()
        await consumer.acknowledge(message)


async def acking_ids(consumer: Consumer) -> None:
    for message in [await consumer.receive() for _ in range(COUNT)]:
        work()
        await consumer.acknowledge(message.message_id())


async def nacking(consumer: Consumer) -> None:
    for message in [await consumer.receive() for _ in range(COUNT)]:
        work()
        await consumer.negative_acknowledge(message, delay=600)


PATHS = [
    receiving,
    receiving_with_a_timeout,
    receiving_and_acking,
    iterating,
    small_batches,
    acking_a_batch_one_by_one,
    acking_ids,
    nacking,
]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
async def test_no_call_blocks_the_loop_longer_than_a_time_slice(
    transport: MemoryTransport,
    subscribe: Subscribe,
    path: Callable[[Consumer], Awaitable[None]],
) -> None:
    put_numbers(transport, COUNT, batch=50)
    consumer = await subscribe(batch_receive_policy=BatchReceivePolicy(1, -1, 0))
    await asyncio.sleep(0.1)
    async with silence() as heard:
        await path(consumer)
    # One time slice, and the work in progress at its end; an ack right after a receive is free.
    assert heard.longest_s <= SLICE_S + 2 * WORK_S + 1e-9
    await consumer.close()


async def test_acking_a_long_list_does_not_block_the_loop(
    transport: MemoryTransport, subscribe: Subscribe, monkeypatch: pytest.MonkeyPatch
) -> None:
    ack = Settlement.ack

    def slow(self: Settlement, message: Settleable) -> None:
        work(WORK_S / 10)
        ack(self, message)

    monkeypatch.setattr(Settlement, "ack", slow)
    put_numbers(transport, 1000, batch=50)
    consumer = await subscribe()
    messages = [await consumer.receive() for _ in range(1000)]
    async with silence() as heard:
        await consumer.acknowledge(messages)
    assert heard.longest_s <= SLICE_S + WORK_S
    await close_without_backlog(transport, consumer)


async def test_several_receiving_tasks_share_one_time_slice(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, COUNT, batch=50)
    consumer = await subscribe()
    await asyncio.sleep(0.1)
    taken = [0] * 8

    async def worker(number: int) -> None:
        while sum(taken) < COUNT:
            taken[number] += 1
            await consumer.receive()
            work()

    async with silence() as heard:
        await asyncio.gather(*(worker(number) for number in range(8)))
    assert heard.longest_s <= SLICE_S + 8 * WORK_S
    assert min(taken) > 0
    await consumer.close()


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_listener_does_not_block_the_loop(
    transport: MemoryTransport, subscribe: Subscribe, is_async: bool
) -> None:
    seen: list[Message] = []

    def at_once(consumer: Consumer, message: Message) -> None:
        work()
        seen.append(message)

    async def asynchronous(consumer: Consumer, message: Message) -> None:
        at_once(consumer, message)
        await consumer.acknowledge(message)

    put_numbers(transport, COUNT, batch=50)
    async with silence() as heard:
        consumer = await subscribe(message_listener=asynchronous if is_async else at_once)
        while len(seen) < COUNT:
            await asyncio.sleep(0)
    assert heard.longest_s <= SLICE_S + 2 * WORK_S + 1e-9
    await consumer.close()


async def test_a_timeout_around_a_receiving_loop_expires_in_time(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 900, batch=50)
    consumer = await subscribe()
    await asyncio.sleep(0.1)
    began_s = now_s()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            while True:
                await consumer.acknowledge(await consumer.receive())
                work()
    assert now_s() - began_s == pytest.approx(1, abs=0.02)
    await consumer.close()


async def test_receives_that_take_no_time_do_not_yield(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    """A thousand messages that take no time are received in one pass, which keeps it fast."""
    put_numbers(transport, 1000, batch=100)
    consumer = await subscribe()
    await asyncio.sleep(0.001)
    passes = 0

    async def count() -> None:
        nonlocal passes
        while True:
            passes += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    for _ in range(1000):
        await consumer.acknowledge(await consumer.receive())
    assert passes == 0
    counting.cancel()
    await consumer.close()


# Time-outs of nothing


@pytest.mark.parametrize("arguments", [{"timeout": 0}, {"timeout_millis": 0}, {"timeout": 1e-6}])
async def test_repeated_receives_without_waiting_let_a_message_arrive(
    transport: MemoryTransport, subscribe: Subscribe, arguments: dict[str, Any]
) -> None:
    consumer = await subscribe()

    async def publish() -> None:
        await asyncio.sleep(0)
        transport.put(TOPIC, b"x")

    publishing = asyncio.ensure_future(publish())
    for attempt in range(50):
        try:
            assert (await consumer.receive(**arguments)).data() == b"x"
            break
        except ReceiveTimeout:
            assert attempt < 49
    await publishing
    await consumer.close()


async def test_repeated_receives_on_a_closed_consumer_let_the_loop_run(
    subscribe: Subscribe,
) -> None:
    consumer = await subscribe()
    await consumer.close()
    passed = asyncio.Event()
    asyncio.get_running_loop().call_soon(passed.set)
    for _ in range(5):
        with pytest.raises(ClosedError):
            await consumer.receive()
    assert passed.is_set()


# Readers


async def test_a_reader_does_not_block_the_loop(transport: MemoryTransport, client: Client) -> None:
    put_numbers(transport, COUNT, batch=50)
    reader = await client.create_reader(TOPIC, MessageId.earliest)
    async with silence() as heard:
        for _ in range(COUNT):
            await reader.read_next()
            work()
    assert heard.longest_s <= SLICE_S + 2 * WORK_S + 1e-9


async def test_repeated_reads_without_waiting_let_a_message_arrive(
    transport: MemoryTransport,
    client: Client,
) -> None:
    reader = await client.create_reader(TOPIC, MessageId.earliest)

    async def publish() -> None:
        await asyncio.sleep(0)
        transport.put(TOPIC, b"x")

    publishing = asyncio.ensure_future(publish())
    for attempt in range(50):
        try:
            assert (await reader.read_next(0)).data() == b"x"
            break
        except ReceiveTimeout:
            assert attempt < 49
    await publishing
