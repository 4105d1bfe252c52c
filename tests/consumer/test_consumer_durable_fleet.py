"""Attempts stored in a state directory, and redeliveries that other consumers requested."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from consumer_kit import TOPIC, put_numbers
from durable_kit import Host

from pulsar_encore import Client, Consumer, ConsumerType, DeadLetterPolicy, MessageId
from pulsar_encore.testing import MemoryTransport

SIZE = 4


async def dead_letters(client: Client) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    async with await client.create_reader(f"{TOPIC}-s-DLQ", MessageId.earliest) as reader:
        while await reader.has_message_available():
            found[(await reader.read_next(timeout_millis=5_000)).data()] += 1
    return found


def options(most: int) -> dict[str, Any]:
    return {
        "dead_letter_policy": DeadLetterPolicy(most),
        "negative_ack_redelivery_delay_ms": 1_000,
        "batch_index_ack_enabled": True,
    }


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize("kills", [1, 3])
async def test_kills_beside_a_second_consumer_count_no_attempt_twice(
    host: Host, transport: MemoryTransport, most: int, kills: int
) -> None:
    """Each message has m + 1 attempts, and one more for each delivery that a kill ended."""
    attempts: Counter[bytes] = Counter()

    async def fail_all(consumer: Consumer) -> None:
        while True:
            message = await consumer.receive()
            attempts[message.data()] += 1
            await consumer.negative_acknowledge(message)

    async with Client("pulsar://nowhere:6650", transport=transport) as client:
        other = await client.subscribe(
            TOPIC, "s", consumer_type=ConsumerType.Shared, **options(most)
        )
        tasks = [asyncio.ensure_future(fail_all(other))]
        durable = await host.start(**options(most))
        tasks.append(asyncio.ensure_future(fail_all(durable)))
        numbers = put_numbers(transport, SIZE, batch=SIZE)
        for _ in range(kills):
            await asyncio.sleep(1.5)
            tasks.pop().cancel()
            await host.kill()
            durable = await host.start(**options(most))
            tasks.append(asyncio.ensure_future(fail_all(durable)))
        await asyncio.sleep(120)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await other.close()
        dead = await dead_letters(client)
    assert set(dead) == set(numbers)
    assert min(attempts.values()) >= most + 1
    assert max(attempts.values()) <= most + 1 + kills


async def test_orderly_restarts_with_a_state_give_each_message_all_its_attempts(
    host: Host,
) -> None:
    """The broker's count starts at 0 for each process; the stored count goes on."""
    numbers = put_numbers(host.transport, SIZE, batch=SIZE)
    counts = []
    for _ in range(3):
        consumer = await host.start(**options(2))
        got = [await consumer.receive(timeout=100) for _ in numbers]
        counts.append({message.redelivery_count() for message in got})
        for message in got:
            await consumer.negative_acknowledge(message)
        await host.stop()
    assert counts == [{0}, {1}, {2}]
    async with Client("pulsar://nowhere:6650", transport=host.transport) as client:
        assert await dead_letters(client) == Counter(numbers)
