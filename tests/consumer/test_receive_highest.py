"""`Consumer.receive_highest`: of the messages that have arrived, those of one topic come first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import pytest
from consumer_kit import TOPIC, Subscribe

from pulsar_encore import ClosedError
from pulsar_encore.testing import MemoryTransport

TOPICS = (TOPIC, f"{TOPIC}2", f"{TOPIC}3")


def rank_of(*order: str) -> Callable[[str], int]:
    """Return a rank by which these topics come first, the first one before the others."""
    return lambda topic: -order.index(topic) if topic in order else -len(order)


@pytest.mark.parametrize("batch", [1, 5, 250])
@pytest.mark.parametrize("seed", range(10))
async def test_each_message_comes_once_and_in_the_order_of_its_topic(
    transport: MemoryTransport, subscribe: Subscribe, batch: int, seed: int
) -> None:
    rng = Random(seed)
    for start in range(0, 500, batch):
        for topic in TOPICS:
            transport.put(topic, *(b"%d" % each for each in range(start, start + batch)))
    consumer = await subscribe(*TOPICS, receiver_queue_size=rng.choice([1, 10, 1000]))
    got: dict[str, list[int]] = {topic: [] for topic in TOPICS}
    rank = rank_of()
    for _ in range(1_500):
        if rng.random() < 0.1:
            rank = rank_of(*rng.sample(TOPICS, k=rng.randint(0, 3)))
        if rng.random() < 0.2:
            message = await consumer.receive(timeout=5)
        else:
            async with asyncio.timeout(5):
                message = await consumer.receive_highest(rank)
        got[message.topic_name()].append(int(message.data()))
        await consumer.acknowledge(message)
    assert all(numbers == list(range(500)) for numbers in got.values())
    await consumer.close()
    assert [transport.backlog(topic, consumer.subscription_name()) for topic in TOPICS] == [0] * 3


async def test_the_topic_with_the_highest_rank_comes_first(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    for topic in TOPICS:
        transport.put(topic, b"1")
        transport.put(topic, b"2")
    consumer = await subscribe(*TOPICS)
    first = await consumer.receive()
    await asyncio.sleep(1)
    rank = rank_of(TOPICS[2], TOPICS[0])
    topics = [(await consumer.receive_highest(rank)).topic_name() for _ in range(5)]
    left = [topic for topic in (TOPICS[2], TOPICS[0], TOPICS[1]) for _ in range(2)]
    left.remove(first.topic_name())
    assert topics == left


async def test_an_empty_queue_waits_for_a_message_of_any_topic(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer = await subscribe(*TOPICS)
    receiving = asyncio.create_task(consumer.receive_highest(rank_of(TOPIC)))
    await asyncio.sleep(5)
    transport.put(TOPICS[2], b"x")
    async with asyncio.timeout(5):
        assert (await receiving).topic_name() == TOPICS[2]
    receiving = asyncio.create_task(consumer.receive_highest(rank_of(TOPIC)))
    await asyncio.sleep(5)
    await consumer.close()
    with pytest.raises(ClosedError):
        await receiving
    with pytest.raises(ClosedError):
        await consumer.receive_highest(rank_of(TOPIC))
