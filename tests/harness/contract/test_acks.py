"""An ack covers its message and never a sibling, and it is durable at the broker."""

from __future__ import annotations

import asyncio

import pytest

import pulsar_encore as encore
from pulsar_encore import MessageId

from .cluster import Cluster, Engine
from .contract_kit import (
    SUBSCRIPTION,
    before_marker,
    bodies,
    data,
    eventually,
    publish,
    subscribe,
    take,
)

Exclusive, Shared = encore.ConsumerType.Exclusive, encore.ConsumerType.Shared
Failover = encore.ConsumerType.Failover


@pytest.mark.parametrize("kind", [Exclusive, Shared, Failover])
async def test_acked_siblings_stay_acked_after_reopening(
    client: encore.Client, topic: str, kind: encore.ConsumerType
) -> None:
    sent = bodies(8)
    await publish(client, topic, sent, batch=8)
    async with await subscribe(client, topic, kind) as consumer:
        got = await take(consumer, 8)
        await consumer.acknowledge([got[1], got[2], got[7]])
    reopened = await subscribe(client, topic, kind)
    assert data(await take(reopened, 5)) == [sent[at] for at in (0, 3, 4, 5, 6)]
    assert await before_marker(client, topic, reopened) == []


async def test_a_nack_redelivers_neither_acked_nor_held_siblings(
    client: encore.Client, topic: str
) -> None:
    await publish(client, topic, bodies(5), batch=5)
    consumer = await subscribe(client, topic)
    got = await take(consumer, 5)
    await consumer.acknowledge([got[0], got[1]])
    await consumer.negative_acknowledge(got[3], delay=0.2)
    [again] = await take(consumer, 1)
    assert (again.data(), again.redelivery_count()) == (got[3].data(), 1)
    assert await before_marker(client, topic, consumer) == []
    await consumer.acknowledge([got[2], again, got[4]])
    await consumer.close()
    reopened = await subscribe(client, topic)
    assert await before_marker(client, topic, reopened) == []


@pytest.mark.parametrize("batch", [0, 5])
async def test_a_batch_leaves_the_backlog_when_its_last_message_is_acked(
    client: encore.Client, cluster: Cluster, topic: str, batch: int
) -> None:
    await publish(client, topic, bodies(20), batch=batch)
    consumer = await subscribe(client, topic)
    for message in reversed(await take(consumer, 20)):
        await consumer.acknowledge(message)
    await eventually(lambda: cluster.backlog(topic, SUBSCRIPTION), 0)


@pytest.mark.parametrize("kind", [Exclusive, Failover])
async def test_cumulative_acks_work_within_and_across_batches(
    client: encore.Client, topic: str, kind: encore.ConsumerType
) -> None:
    sent = bodies(15)
    await publish(client, topic, sent, batch=5)
    async with await subscribe(client, topic, kind) as consumer:
        got = await take(consumer, 15)
        await consumer.acknowledge_cumulative(got[1])
        await consumer.acknowledge_cumulative(got[7])
        await consumer.acknowledge_cumulative(got[3])  # an earlier position changes nothing
    async with await subscribe(client, topic, kind) as reopened:
        got = await take(reopened, 7)
        assert data(got) == sent[8:]
        await reopened.acknowledge_cumulative(got[1])  # the last of its batch
    reopened = await subscribe(client, topic, kind)
    assert data(await take(reopened, 5)) == sent[10:]


async def test_cumulative_and_single_acks_can_be_mixed(client: encore.Client, topic: str) -> None:
    sent = bodies(10)
    await publish(client, topic, sent)
    async with await subscribe(client, topic, Exclusive) as consumer:
        got = await take(consumer, 10)
        await consumer.acknowledge([got[6], got[8]])
        await consumer.acknowledge_cumulative(got[3])
    reopened = await subscribe(client, topic, Exclusive)
    assert data(await take(reopened, 4)) == [sent[at] for at in (4, 5, 7, 9)]


async def test_an_ack_of_a_chunked_message_covers_all_chunks_or_is_refused(
    client: encore.Client, topic: str
) -> None:
    """An ack by id of a message that another consumer holds would leave its other chunks unacked
    for ever.
    """
    payload = bytes(6 * 2**20)
    async with await client.create_producer(
        topic, batching_enabled=False, chunking_enabled=True
    ) as producer:
        await producer.send(payload)
    holder = await subscribe(client, topic)
    [message] = await take(holder, 1)
    rebuilt = MessageId.deserialize(message.message_id().serialize(), topic)
    other_consumer = await subscribe(client, topic)
    with pytest.raises(encore.MessageNotHeldError, match="all its chunks"):
        await other_consumer.acknowledge(rebuilt)
    await holder.close()
    [again] = await take(other_consumer, 1, timeout=10)
    assert again.data() == payload
    await other_consumer.acknowledge(rebuilt)
    await other_consumer.close()
    assert await before_marker(client, topic, await subscribe(client, topic)) == []


@pytest.mark.parametrize("kind", [Exclusive, Failover])
@pytest.mark.parametrize("first", [0, 5])
async def test_a_cumulative_ack_of_a_singly_acked_message_keeps_later_single_acks(
    client: encore.Client, topic: str, kind: encore.ConsumerType, first: int
) -> None:
    """In the topic's first entry, and in a later one."""
    sent = bodies(10)
    await publish(client, topic, sent, batch=5)
    async with await subscribe(client, topic, kind) as consumer:
        got = await take(consumer, 10)
        await consumer.acknowledge([got[first + 2], got[first + 4]])
        await asyncio.sleep(0.3)  # the acks are sent
        await consumer.acknowledge_cumulative(got[first + 2])
    async with await subscribe(client, topic, kind) as reopened:
        left = [first + 3, *range(first + 5, 10)]
        assert data(await take(reopened, len(left))) == [sent[at] for at in left]
        assert await before_marker(client, topic, reopened) == []


async def test_a_cumulative_ack_keeps_single_acks_of_an_earlier_consumer(
    client: encore.Client, topic: str
) -> None:
    sent = bodies(5)
    await publish(client, topic, sent, batch=5)
    async with await subscribe(client, topic, Exclusive) as consumer:
        await consumer.acknowledge((await take(consumer, 5))[3])
    async with await subscribe(client, topic, Exclusive) as consumer:
        got = await take(consumer, 4)
        await consumer.acknowledge_cumulative(got[1])
    reopened = await subscribe(client, topic, Exclusive)
    assert data(await take(reopened, 2)) == [sent[2], sent[4]]
    assert await before_marker(client, topic, reopened) == []


@pytest.mark.parametrize("batch", [0, 50])
async def test_acks_survive_an_immediate_close(
    client: encore.Client, topic: str, batch: int
) -> None:
    await publish(client, topic, bodies(200), batch=batch)
    consumer = await subscribe(client, topic, ack_group_time_ms=10_000)
    for message in await take(consumer, 200):
        await consumer.acknowledge(message)
    await consumer.close()
    reopened = await subscribe(client, topic)
    assert await before_marker(client, topic, reopened) == []


async def test_acks_survive_closing_the_client(
    cluster: Cluster, engine: Engine, topic: str
) -> None:
    async with engine.client(cluster.url) as first:
        await publish(first, topic, bodies(9), batch=3)
        consumer = await subscribe(first, topic, ack_group_time_ms=10_000)
        await consumer.acknowledge((await take(consumer, 9))[:-1])
    async with engine.client(cluster.url) as second:
        assert data(await take(await subscribe(second, topic), 1)) == [b"00008"]


async def test_an_id_from_bytes_acks_only_its_message(client: encore.Client, topic: str) -> None:
    sent = bodies(5)
    await publish(client, topic, sent, batch=5)
    async with await subscribe(client, topic) as consumer:
        got = await take(consumer, 5)
        stored = got[2].message_id().serialize()
        await consumer.acknowledge(MessageId.deserialize(stored))
    reopened = await subscribe(client, topic)
    assert data(await take(reopened, 4)) == [sent[at] for at in (0, 1, 3, 4)]
    assert await before_marker(client, topic, reopened) == []


async def test_an_id_in_a_batch_of_another_consumer_acks_only_its_message_or_is_refused(
    client: encore.Client, engine: Engine, topic: str
) -> None:
    sent = bodies(4)
    await publish(client, topic, sent, batch=4)
    holder = await subscribe(client, topic)
    got = await take(holder, 4)
    other_consumer = await subscribe(client, topic)
    rebuilt = MessageId.deserialize(got[1].message_id().serialize(), topic)
    if engine.capabilities.ack_unseen_index:
        await other_consumer.acknowledge(rebuilt)
        left = [sent[0], sent[2], sent[3]]
    else:
        with pytest.raises(encore.MessageNotHeldError, match="ack it when it is redelivered"):
            await other_consumer.acknowledge(rebuilt)
        left = sent
    await other_consumer.close()
    await holder.close()
    assert data(await take(await subscribe(client, topic), len(left))) == left


async def test_another_consumer_can_ack_the_id_of_an_unbatched_message(
    client: encore.Client, topic: str
) -> None:
    sent = bodies(3)
    await publish(client, topic, sent)
    holder = await subscribe(client, topic)
    got = await take(holder, 3)
    async with await subscribe(client, topic) as other_consumer:
        await other_consumer.acknowledge(MessageId.deserialize(got[1].message_id().serialize()))
    await holder.close()
    assert data(await take(await subscribe(client, topic), 2)) == [sent[0], sent[2]]


async def test_messages_of_another_consumer_are_refused(client: encore.Client, topic: str) -> None:
    await publish(client, topic, bodies(2))
    holder = await subscribe(client, topic)
    other_consumer = await subscribe(client, topic)
    received = await asyncio.wait_for(_receive_from_any(holder, other_consumer), 15)
    other_side = other_consumer if received[0] is holder else holder
    for settle in (other_side.acknowledge, other_side.negative_acknowledge):
        with pytest.raises(encore.MessageNotHeldError):
            await settle(received[1])


async def _receive_from_any(*consumers: encore.Consumer) -> tuple[encore.Consumer, encore.Message]:
    while True:
        for consumer in consumers:
            try:
                return consumer, await consumer.receive(timeout=0.05)
            except encore.ReceiveTimeout:
                continue


async def test_cumulative_acks_are_refused_on_shared(client: encore.Client, topic: str) -> None:
    await publish(client, topic, bodies(1))
    consumer = await subscribe(client, topic)
    [got] = await take(consumer, 1)
    with pytest.raises(encore.ConfigurationError, match="Exclusive or Failover"):
        await consumer.acknowledge_cumulative(got)
