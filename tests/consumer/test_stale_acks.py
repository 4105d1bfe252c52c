"""Acks of messages that were received before a seek are void."""

from __future__ import annotations

import pytest
from consumer_kit import TOPIC, Subscribe, receive_n, settle

from pulsar_encore import Consumer, ConsumerType, Message, MessageId
from pulsar_encore.testing import MemoryTransport


async def ack_each(consumer: Consumer, stale: list[Message]) -> None:
    for message in stale:
        await consumer.acknowledge(message)


async def ack_list(consumer: Consumer, stale: list[Message]) -> None:
    await consumer.acknowledge(stale)


async def ack_cumulative(consumer: Consumer, stale: list[Message]) -> None:
    await consumer.acknowledge_cumulative(stale[-1])


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("how", [ack_each, ack_list, ack_cumulative])
@pytest.mark.parametrize("when", ["at once", "queued", "held"])
async def test_an_ack_of_a_message_from_before_a_seek_takes_nothing_from_the_replay(
    transport: MemoryTransport, subscribe: Subscribe, how: object, batch: int, when: str
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
    await how(consumer, stale)  # type: ignore[operator]
    await settle()
    replayed += await receive_n(consumer, 20 - len(replayed))
    assert [message.data() for message in replayed] == [b"%d" % each for each in range(20)]
    assert transport.backlog(TOPIC, "s") == 20 // batch
    await consumer.acknowledge_cumulative(replayed[-1])
    await consumer.close()
    assert transport.backlog(TOPIC, "s") == 0
