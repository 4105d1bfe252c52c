"""Order and completeness, over the four subscription types."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest

import pulsar_encore as encore

from .cluster import Cluster
from .contract_kit import (
    SUBSCRIPTION,
    ack_all,
    before_marker,
    bodies,
    data,
    publish,
    subscribe,
    take,
)

Exclusive, Shared = encore.ConsumerType.Exclusive, encore.ConsumerType.Shared
Failover, KeyShared = encore.ConsumerType.Failover, encore.ConsumerType.KeyShared


@pytest.mark.parametrize("batch", [0, 7])
@pytest.mark.parametrize("kind", [Exclusive, Shared, Failover, KeyShared])
async def test_all_messages_are_delivered_once_and_in_order(
    client: encore.Client, topic: str, kind: encore.ConsumerType, batch: int
) -> None:
    sent = bodies(50)
    ids = await publish(client, topic, sent, batch=batch)
    consumer = await subscribe(client, topic, kind)
    got = await take(consumer, len(sent))
    assert data(got) == sent
    assert [message.message_id() for message in got] == ids
    assert {message.redelivery_count() for message in got} == {0}
    assert {message.topic_name() for message in got} == {topic}
    await ack_all(consumer, got)
    assert await before_marker(client, topic, consumer) == []


async def test_properties_keys_and_timestamps_are_delivered(
    client: encore.Client, topic: str
) -> None:
    await publish(
        client, topic, [b"x"], keys=["k"], properties={"a": "1"}, event_timestamp=17, batch=0
    )
    consumer = await subscribe(client, topic)
    [got] = await take(consumer, 1)
    assert got.properties() == {"a": "1"}
    assert (got.partition_key(), got.event_timestamp()) == ("k", 17)
    assert got.publish_timestamp() > 0


async def test_a_null_value_is_delivered_as_a_null_value(client: encore.Client, topic: str) -> None:
    await publish(client, topic, [None])
    [got] = await take(await subscribe(client, topic), 1)
    assert got.has_null_value()
    assert got.data() == b""


async def test_shared_consumers_split_the_messages(client: encore.Client, topic: str) -> None:
    pair = [await subscribe(client, topic, Shared, receiver_queue_size=10) for _ in range(2)]
    sent = bodies(60)
    await publish(client, topic, sent)
    shares: list[list[bytes]] = [[], []]

    async def drain(number: int) -> None:
        while len(shares[0]) + len(shares[1]) < len(sent):
            try:
                message = await pair[number].receive(timeout=0.2)
            except encore.ReceiveTimeout:
                continue
            shares[number].append(message.data())
            await pair[number].acknowledge(message)

    async with asyncio.timeout(15):
        await asyncio.gather(drain(0), drain(1))
    assert sorted(shares[0] + shares[1]) == sent
    assert min(len(share) for share in shares) >= 10


@pytest.mark.parametrize("batch", [0, 64])
async def test_key_shared_keeps_a_key_together_and_in_order(
    client: encore.Client, topic: str, batch: int
) -> None:
    # The names decide who gets a key. With random ones, a consumer gets none in 1 of 3,000 runs.
    pair = [await subscribe(client, topic, KeyShared, consumer_name=name) for name in "ab"]
    sent = bodies(80)
    keys = [f"key-{number % 16}" for number in range(80)]
    await publish(client, topic, sent, keys=keys, batch=batch, by_key=batch > 0)
    owners: dict[str, set[int]] = defaultdict(set)
    by_key: dict[str, list[bytes]] = defaultdict(list)

    async def drain(number: int) -> None:
        while sum(map(len, by_key.values())) < len(sent):
            try:
                message = await pair[number].receive(timeout=0.2)
            except encore.ReceiveTimeout:
                continue
            owners[message.partition_key()].add(number)
            by_key[message.partition_key()].append(message.data())
            await pair[number].acknowledge(message)

    async with asyncio.timeout(15):
        await asyncio.gather(drain(0), drain(1))
    assert {len(found) for found in owners.values()} == {1}
    assert set.union(*owners.values()) == {0, 1}
    assert by_key == {key: sent[number::16] for number, key in enumerate(keys[:16])}


async def test_failover_delivers_unacked_messages_to_the_standby_consumer(
    client: encore.Client, cluster: Cluster, topic: str
) -> None:
    # without partitions a hash chooses the active consumer
    await cluster.create_partitioned_topic(topic, 1)
    active = await subscribe(client, topic, Failover, consumer_name="a")
    sent = bodies(6)
    await publish(client, topic, sent)
    got = await take(active, 6)
    standby = await subscribe(client, topic, Failover, consumer_name="b")
    await active.acknowledge(got[:2])
    with pytest.raises(encore.ReceiveTimeout):
        await standby.receive(timeout=0.1)
    await active.close()
    taken_over = await take(standby, 4)
    assert data(taken_over) == sent[2:]
    assert {message.redelivery_count() for message in taken_over} == {0}


async def test_messages_of_a_closed_consumer_are_redelivered_to_another(
    client: encore.Client, topic: str
) -> None:
    leaving = await subscribe(client, topic)
    sent = bodies(10)
    await publish(client, topic, sent)
    got = await take(leaving, 10)
    staying = await subscribe(client, topic)
    await leaving.acknowledge(got[::2])
    await leaving.close()
    assert sorted(data(await take(staying, 5))) == sent[1::2]
    assert await before_marker(client, topic, staying) == []


async def test_subscriptions_are_independent(client: encore.Client, topic: str) -> None:
    await publish(client, topic, bodies(3))
    first = await subscribe(client, topic)
    await ack_all(first, await take(first, 3))
    other = await client.subscribe(
        topic, f"{SUBSCRIPTION}2", initial_position=encore.InitialPosition.Earliest
    )
    assert data(await take(other, 3)) == bodies(3)


async def test_latest_skips_earlier_messages(client: encore.Client, topic: str) -> None:
    await publish(client, topic, bodies(3))
    consumer = await subscribe(client, topic, initial_position=encore.InitialPosition.Latest)
    assert await before_marker(client, topic, consumer) == []
