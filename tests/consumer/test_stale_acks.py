"""Acks of messages that were received before a seek lose nothing and block nothing.

Such an ack also counts for the replay of its message, as in Java's client. So a message comes
again, or its early ack settles it. The test allows both, and fails if neither happens.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from consumer_kit import TOPIC, Subscribe, close_without_backlog, receive_n, settle

from pulsar_encore import Consumer, ConsumerType, Message, MessageId, ReceiveTimeout
from pulsar_encore.testing import MemoryTransport

Ack = Callable[[Consumer, list[Message]], Awaitable[None]]


async def ack_each(consumer: Consumer, stale: list[Message]) -> None:
    for message in stale:
        await consumer.acknowledge(message)


async def ack_list(consumer: Consumer, stale: list[Message]) -> None:
    await consumer.acknowledge(stale)


async def ack_cumulative(consumer: Consumer, stale: list[Message]) -> None:
    await consumer.acknowledge_cumulative(stale[-1])


async def receive_the_rest(consumer: Consumer) -> list[Message]:
    received = []
    while True:
        try:
            received.append(await consumer.receive(timeout=1_000))
        except ReceiveTimeout:
            return received


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("ack", [ack_each, ack_list, ack_cumulative])
@pytest.mark.parametrize("when", ["at once", "queued", "held"])
async def test_each_message_from_before_a_seek_is_redelivered_or_settled_by_its_late_ack(
    transport: MemoryTransport, subscribe: Subscribe, ack: Ack, batch: int, when: str
) -> None:
    for start in range(0, 20, batch):
        transport.put(TOPIC, *[b"%d" % each for each in range(start, start + batch)])
    consumer = await subscribe(consumer_type=ConsumerType.Exclusive)
    stale = await receive_n(consumer, 20)
    await consumer.seek(MessageId.earliest)
    replayed = []
    if when != "at once":
        await settle()
    if when == "held":
        replayed = await receive_n(consumer, 10)
    await ack(consumer, stale[:15])
    await settle()
    replayed += await receive_the_rest(consumer)
    values = [message.data() for message in replayed]
    assert len(values) == len(set(values))
    unacked = {b"%d" % each for each in range(15, 20)}
    assert set(values) >= unacked
    await consumer.acknowledge(replayed)
    await close_without_backlog(transport, consumer)
