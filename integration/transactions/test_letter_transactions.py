"""Letters in transactions on a real Pulsar: each message has one letter, also after kills.

ENCORE_KILLS (4) is the number of kills in each test of them, ENCORE_SEED (random, printed) their
times.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_encore import (
    Client,
    Consumer,
    ConsumerType,
    DeadLetterPolicy,
    InitialPosition,
    Message,
    MessageId,
    TransactionConflict,
)
from tests.harness.pulsar_server import Broker

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("ENCORE_KILLS", "4"))
EACH_LIFE = 400  # messages
KINDS = pytest.mark.parametrize(
    "kind", [ConsumerType.Shared, ConsumerType.Failover], ids=lambda kind: kind.name
)
BATCHES = pytest.mark.parametrize("batching", [True, False], ids=["batches", "unbatched"])
#: Longer than a redelivery takes.
QUIET_S = 1.0


@pytest.fixture
async def client(transactional: Broker) -> AsyncIterator[Client]:
    async with Client(transactional.service_url, transport="native") as found:
        yield found


async def fill(client: Client, topic: str, count: int, *, batching: bool) -> None:
    async with client.create_producer(
        topic, batching_enabled=batching, batching_max_publish_delay_ms=5, block_if_queue_full=True
    ) as producer:
        for number in range(count):
            producer.send_async(b"%d" % number, None)
        await producer.flush()


def subscribe(client: Client, topic: str, kind: ConsumerType, **options: Any) -> Any:
    options.setdefault("dead_letter_policy", DeadLetterPolicy(2, transactional=True))
    return client.subscribe(
        topic,
        "s",
        kind,
        initial_position=InitialPosition.Earliest,
        negative_ack_redelivery_delay_ms=100,
        retry_enable=True,
        **options,
    )


async def take(consumer: Consumer, count: int) -> list[Message]:
    return [await consumer.receive(timeout_millis=20_000) for _ in range(count)]


async def rest(consumer: Consumer) -> list[int]:
    """Receive and ack all other messages."""
    found = []
    try:
        while True:
            message = await consumer.receive(timeout_millis=int(QUIET_S * 1000))
            found.append(int(message.data()))
            await consumer.acknowledge(message)
    except TimeoutError:
        return found


async def letters(client: Client, topic: str) -> list[int]:
    """Return the visible messages of a topic."""
    found = []
    async with client.create_reader(topic, MessageId.earliest) as reader:
        while await reader.has_message_available():
            found.append(int((await reader.read_next(timeout_millis=20_000)).data()))
    return found


@KINDS
@BATCHES
@pytest.mark.parametrize("end", ["commit", "abort"])
async def test_a_letter_and_its_ack_take_effect_with_the_commit(
    client: Client, topic: str, kind: ConsumerType, batching: bool, end: str
) -> None:
    await fill(client, topic, 6, batching=batching)
    async with subscribe(client, topic, kind, dead_letter_policy=DeadLetterPolicy(2)) as consumer:
        messages = await take(consumer, 6)
        txn = await client.transaction()
        await consumer.reconsume_later(messages[0], txn=txn)
        await consumer.reconsume_later(messages[1:3], txn=txn)
        assert await letters(client, f"{topic}-s-RETRY") == []
        await getattr(txn, end)()
        if kind is ConsumerType.Shared or end == "commit":
            await consumer.acknowledge(messages[3:])
            expected = [0, 1, 2]
        else:
            expected = list(range(6))
        assert sorted(await rest(consumer)) == expected
        retry = [0, 1, 2] if end == "commit" else []
        assert await letters(client, f"{topic}-s-RETRY") == retry
        assert consumer.counters().retry_letters == len(retry)
    async with subscribe(client, topic, kind) as consumer:
        assert await rest(consumer) == []


@BATCHES
async def test_a_cumulative_letter(client: Client, topic: str, batching: bool) -> None:
    await fill(client, topic, 6, batching=batching)
    async with subscribe(
        client, topic, ConsumerType.Failover, dead_letter_policy=DeadLetterPolicy(2)
    ) as consumer:
        messages = await take(consumer, 6)
        async with client.transaction() as txn:
            await consumer.reconsume_later_cumulative(messages[2], txn=txn)
        await consumer.acknowledge(messages[3:])
        assert await rest(consumer) == [2]
    async with subscribe(client, topic, ConsumerType.Failover) as consumer:
        assert await rest(consumer) == []


@KINDS
@BATCHES
@pytest.mark.parametrize("way", ["reject", "nack", "reconsume"])
async def test_each_message_has_one_dead_letter(
    client: Client, topic: str, kind: ConsumerType, batching: bool, way: str
) -> None:
    await fill(client, topic, 30, batching=batching)
    async with subscribe(client, topic, kind) as consumer:
        seen: Counter[int] = Counter()
        calls = []
        try:
            while True:
                message = await consumer.receive(timeout_millis=3_000)
                seen[int(message.data())] += 1
                match way:
                    case "reject":
                        calls.append(asyncio.ensure_future(consumer.reject(message, "bad")))
                    case "nack":
                        await consumer.negative_acknowledge(message)
                    case _:
                        calls.append(asyncio.ensure_future(consumer.reconsume_later(message)))
        except TimeoutError:
            await asyncio.gather(*calls)
        assert seen == dict.fromkeys(range(30), 1 if way == "reject" else 3)
        assert consumer.counters().dead_letters == 30
        assert consumer.statistics().unacked == 0
    assert sorted(await letters(client, f"{topic}-s-DLQ")) == list(range(30))
    async with subscribe(client, topic, kind) as consumer:
        assert await rest(consumer) == []


@BATCHES
async def test_a_cumulative_ack_past_a_message_keeps_its_letter(
    client: Client, topic: str, batching: bool
) -> None:
    await fill(client, topic, 10, batching=batching)
    async with subscribe(client, topic, ConsumerType.Failover) as consumer:
        messages = await take(consumer, 10)
        await consumer.reject(messages[0], "bad")  # connects to the letter topic
        calls = [asyncio.ensure_future(consumer.reject(each, "bad")) for each in messages[1:4]]
        await asyncio.sleep(0.01)
        await consumer.acknowledge_cumulative(messages[7])
        await asyncio.gather(*calls)
        await consumer.reconsume_later_cumulative(messages[9])
        assert await rest(consumer) == [9]
        assert consumer.statistics().unacked == 0
    assert await letters(client, f"{topic}-s-DLQ") == [0, 1, 2, 3]
    async with subscribe(client, topic, ConsumerType.Failover) as consumer:
        assert await rest(consumer) == []


async def test_a_message_that_another_consumer_has_acked_spoils_its_group_once(
    client: Client, topic: str
) -> None:
    """The broker refuses the ack, so the whole group is aborted, and comes again without it."""
    await fill(client, topic, 10, batching=False)
    async with subscribe(client, topic, ConsumerType.Shared) as consumer:
        messages = await take(consumer, 10)
        async with subscribe(client, topic, ConsumerType.Shared) as other:
            await other.acknowledge(messages[4].message_id())
            await other.flush()
        await consumer.reject(messages[0], "bad")
        outcomes = await asyncio.gather(
            *(consumer.reject(each, "bad") for each in messages[1:]), return_exceptions=True
        )
        assert all(outcomes), outcomes
        assert any(isinstance(each.__cause__, TransactionConflict) for each in outcomes if each)
        again = await take(consumer, 8)
        await asyncio.gather(*(consumer.reject(each, "bad") for each in again))
    assert sorted(await letters(client, f"{topic}-s-DLQ")) == [0, 1, 2, 3, 5, 6, 7, 8, 9]


@KINDS
@BATCHES
async def test_killed_processes_double_no_letter_and_lose_none(
    client: Client, topic: str, transactional: Broker, kind: ConsumerType, batching: bool
) -> None:
    seed = int(os.environ.get("ENCORE_SEED", str(random.randrange(10**6))))
    print(f"ENCORE_SEED={seed}")
    rng = random.Random(seed)
    count = EACH_LIFE * (KILLS + 1)
    await fill(client, topic, count, batching=batching)
    setup = json.dumps({"url": transactional.service_url, "topic": topic, "kind": kind.name})
    command = [sys.executable, "-m", "integration.transactions.letter_process", setup]
    dead = f"{topic}-s-DLQ"
    for life in range(KILLS + 1):
        process = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )
        try:
            assert process.stdout is not None
            async with asyncio.timeout(60):
                await process.stdout.readline()
            if life < KILLS:
                await asyncio.sleep(rng.uniform(0, 0.7))
            else:
                await until_stored(client, dead, count)
        finally:
            process.kill()
            await process.communicate()
    found = Counter(await letters(client, dead))
    assert found == dict.fromkeys(range(count), 1)
    async with subscribe(client, topic, kind) as consumer:
        assert await rest(consumer) == []


async def until_stored(client: Client, topic: str, count: int) -> None:
    """Wait until a topic has that many visible messages; transactions of dead processes end."""
    stored = 0
    async with asyncio.timeout(90), client.create_reader(topic, MessageId.earliest) as reader:
        while stored < count:
            await reader.read_next()
            stored += 1
    await asyncio.sleep(QUIET_S)  # for letters that are doubled
