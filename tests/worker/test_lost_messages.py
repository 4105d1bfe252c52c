"""No message stays with a consumer that nobody serves, and none is processed twice at a time."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from worker_kit import DEAD_LETTERS, SUBSCRIPTION, TOPIC, all_acked, letters, running, until

import pulsar_encore as encore
from pulsar_encore import Client, InitialPosition, Message, MessageId, Worker
from pulsar_encore.devbroker import Fault, FaultPlan
from pulsar_encore.testing import MemoryTransport


class Calls:
    """Counts the calls for each message, and those that run at the same time."""

    def __init__(self) -> None:
        self.running: Counter[bytes] = Counter()
        self.begun: Counter[bytes] = Counter()
        self.cancelled: list[bytes] = []

    async def hang(self, value: bytes) -> None:
        self.begun[value] += 1
        self.running[value] += 1
        assert self.running[value] == 1
        try:
            if self.begun[value] == 1:
                await asyncio.sleep(100)
        except asyncio.CancelledError:
            self.cancelled.append(value)
            raise
        finally:
            self.running[value] -= 1


@pytest.mark.parametrize("order", ["none", "key", "partition"])
@pytest.mark.parametrize("loss", ["rewind", "seek"])
async def test_a_handler_is_cancelled_when_a_rewind_or_a_seek_takes_its_message(
    client: Client, transport: MemoryTransport, order: str, loss: str
) -> None:
    calls = Calls()
    transport.catalogue.create_partitioned(TOPIC, 2)
    for number in range(6):
        topic = f"{TOPIC}-partition-{number % 2}"
        transport.put(topic, b"%d" % number, key=str(number) if order == "key" else "")
    async with running(client, calls.hang, order=order) as worker:
        await until(lambda: len(calls.running) >= (2 if order == "partition" else 6))
        if loss == "rewind":
            worker.consumer.redeliver_unacknowledged_messages()
        else:
            await worker.consumer.seek(MessageId.earliest)
        await asyncio.sleep(5)
        assert len(calls.cancelled) == (2 if order == "partition" else 6)
        for partition in range(2):
            await all_acked(transport, f"{TOPIC}-partition-{partition}")
        assert worker.held == 0


async def test_messages_of_a_batch_are_not_processed_twice_when_one_of_them_fails(
    client: Client, transport: MemoryTransport
) -> None:
    calls: Counter[bytes] = Counter()

    async def handler(value: bytes) -> None:
        calls[value] += 1
        if value == b"bad" and calls[value] == 1:
            raise ValueError("not yet")
        await asyncio.sleep(30)

    retry = encore.RetryPolicy(backoff=[1])
    async with running(client, handler, retry=retry), running(client, handler, retry=retry):
        transport.put(TOPIC, b"bad", b"good")
        await all_acked(transport)
    assert calls == {b"bad": 2, b"good": 1}


async def test_messages_of_a_batch_are_not_processed_twice_when_one_fails_alone_in_a_list(
    client: Client, transport: MemoryTransport
) -> None:
    calls: Counter[bytes] = Counter()

    async def handler(values: list[bytes]) -> None:
        calls.update(values)
        if b"bad" in values and calls[b"bad"] == 1:
            raise encore.BatchFailure({values.index(b"bad"): ValueError("not yet")})
        await asyncio.sleep(30)

    retry = encore.RetryPolicy(backoff=[1])
    lists: dict[str, Any] = {"max_messages": 1, "concurrency": 2, "retry": retry, "max_wait": 0.1}
    lists["initial_position"] = InitialPosition.Earliest
    first = encore.BatchWorker(client, TOPIC, SUBSCRIPTION, handler, **lists)
    second = encore.BatchWorker(client, TOPIC, SUBSCRIPTION, handler, **lists)
    async with first, second:
        transport.put(TOPIC, b"bad", b"good")
        await all_acked(transport)
    assert calls == {b"bad": 2, b"good": 1}


async def test_a_message_comes_again_if_its_own_rejection_is_cancelled_and_fails(
    client: Client, transport: MemoryTransport
) -> None:
    attempts = []

    async def handler(value: bytes, message: Message) -> None:
        attempts.append(message.attempt)
        if len(attempts) == 1:
            await message.reject("negative total")

    # The producer of the letter fails after the timeout of the handler.
    transport.faults = FaultPlan([Fault(kind="drop", command="PRODUCER", topic=DEAD_LETTERS)])
    transport.put(TOPIC, b"x")
    async with running(client, handler, timeout=2):
        await all_acked(transport)
    assert len(attempts) == 2
    assert await letters(client) == []


async def test_a_worker_that_stops_while_it_subscribes_leaves_no_consumer_behind(
    client: Client, transport: MemoryTransport
) -> None:
    seen = []

    async def handler(value: bytes) -> None:
        seen.append(value)

    transport.put(TOPIC, b"x")
    loop = asyncio.get_running_loop()
    for passes in range(40):  # the stop comes at another step of the subscribe each time
        earliest = InitialPosition.Earliest
        worker = Worker(client, TOPIC, SUBSCRIPTION, handler, initial_position=earliest, drain=0)
        serving = asyncio.ensure_future(worker.serve())
        for _ in range(passes):
            await asyncio.sleep(0)
        began_s = loop.time()
        worker.stop()
        await serving
        assert loop.time() - began_s < 0.1
    if not seen:
        async with running(client, handler):
            await all_acked(transport)
    assert seen


async def test_a_worker_stops_in_time_while_the_broker_does_not_answer(
    client: Client, transport: MemoryTransport
) -> None:
    async def handler(value: bytes) -> None: ...

    transport.faults = FaultPlan([Fault(kind="drop", command="LOOKUP", times=9)])
    loop = asyncio.get_running_loop()
    worker = Worker(
        client, TOPIC, SUBSCRIPTION, handler, initial_position=InitialPosition.Earliest, drain=5
    )
    serving = asyncio.ensure_future(worker.serve())
    await asyncio.sleep(1.5)
    assert worker.health().state == "starting"
    began_s = loop.time()
    worker.stop()
    await serving
    assert loop.time() - began_s < 5


async def test_messages_of_a_worker_without_time_to_drain_go_to_the_next_worker(
    client: Client, transport: MemoryTransport
) -> None:
    seen: Counter[bytes] = Counter()

    async def hang(value: bytes) -> None:
        await asyncio.sleep(1000)

    async def handler(value: bytes) -> None:
        seen[value] += 1

    transport.put(TOPIC, *(b"%d" % number for number in range(20)))
    async with running(client, hang, drain=0):
        await asyncio.sleep(1)
    async with running(client, handler):
        await all_acked(transport)
    assert seen == {b"%d" % number: 1 for number in range(20)}
