"""`Consumer.take_rest_of_batches`: the arrived messages of batches that have begun."""

from __future__ import annotations

import asyncio

import pytest
from consumer_kit import TOPIC, Subscribe

from pulsar_encore.testing import MemoryTransport


def numbers(messages: list) -> list[int]:
    return [int(each.data()) for each in messages]


@pytest.mark.parametrize("begins_with", ["an ack", "a running message"])
async def test_the_rest_of_a_batch_is_taken_and_nothing_else(
    transport: MemoryTransport, subscribe: Subscribe, begins_with: str
) -> None:
    for start in (0, 350, 700):
        transport.put(TOPIC, *(b"%d" % each for each in range(start, start + 350)))
    transport.put(TOPIC, b"1050")
    consumer = await subscribe(TOPIC, receiver_queue_size=2000)
    await asyncio.sleep(1)
    # One message of the second batch, of which the first part stays queued.
    taken = [await consumer.receive() for _ in range(360)]
    running = []
    if begins_with == "an ack":
        await consumer.acknowledge(taken[355])
        await consumer.acknowledge(taken[5])
    else:
        running = [taken[5], taken[355]]
    rest = consumer.take_rest_of_batches(running)
    assert numbers(rest) == list(range(360, 700))
    assert consumer.take_rest_of_batches(running) == []
    after = [await consumer.receive(timeout=5) for _ in range(351)]
    assert numbers(after) == list(range(700, 1051))
    for each in (*taken, *rest, *after):
        await consumer.acknowledge(each)
    transport.put(TOPIC, *[b"1"] * 3000)  # the permits are as before
    more = [await consumer.receive(timeout=5) for _ in range(3000)]
    assert len(more) == 3000


async def test_no_batch_has_begun_in_an_empty_queue(subscribe: Subscribe) -> None:
    consumer = await subscribe(TOPIC)
    assert consumer.take_rest_of_batches([]) == []
