"""Several topics in one consumer: partitions, lists, patterns."""

from __future__ import annotations

import re

import pytest

import pulsar_encore as encore
from pulsar_encore import MessageId

from .cluster import Cluster, Engine
from .contract_kit import SUBSCRIPTION, bodies, data, eventually, publish, subscribe, take

Exclusive, Shared = encore.ConsumerType.Exclusive, encore.ConsumerType.Shared


@pytest.mark.parametrize("kind", [Exclusive, Shared])
async def test_each_partition_is_read_completely_and_in_order(
    client: encore.Client, cluster: Cluster, topic: str, kind: encore.ConsumerType
) -> None:
    await cluster.create_partitioned_topic(topic, 3)
    assert len(await client.get_topic_partitions(topic)) == 3
    sent = bodies(60)
    await publish(client, topic, sent)
    consumer = await subscribe(client, topic, kind)
    got = await take(consumer, 60)
    assert sorted(data(got)) == sent
    for partition in range(3):
        of_topic = [each for each in got if each.message_id().partition() == partition]
        assert data(of_topic) == sorted(data(of_topic))
        assert {each.topic_name() for each in of_topic} == {f"{topic}-partition-{partition}"}
    await consumer.acknowledge(got)
    await eventually(lambda: cluster.backlog(topic, SUBSCRIPTION), 0)


async def test_a_nacked_message_of_a_partition_is_redelivered(
    client: encore.Client, cluster: Cluster, topic: str
) -> None:
    await cluster.create_partitioned_topic(topic, 2)
    await publish(client, topic, bodies(10))
    consumer = await subscribe(client, topic)
    got = await take(consumer, 10)
    await consumer.acknowledge(got[:4] + got[5:])
    await consumer.negative_acknowledge(got[4], delay=0.2)
    [again] = await take(consumer, 1)
    assert (again.data(), again.redelivery_count()) == (got[4].data(), 1)
    assert again.message_id() == got[4].message_id()
    await consumer.acknowledge(again)
    await eventually(lambda: cluster.backlog(topic, SUBSCRIPTION), 0)


async def test_ids_rebuilt_from_bytes_and_topic_can_be_acked_and_nacked(
    client: encore.Client, cluster: Cluster, topic: str
) -> None:
    await cluster.create_partitioned_topic(topic, 2)
    await publish(client, topic, bodies(12))
    async with await subscribe(client, topic) as consumer:
        got = await take(consumer, 12)
        stored = [(each.message_id().serialize(), each.topic_name()) for each in got]
        rebuilt = [MessageId.deserialize(*each) for each in stored]
        await consumer.acknowledge(rebuilt[:10])
        await consumer.negative_acknowledge(rebuilt[10], delay=0.2)
        [again] = await take(consumer, 1)
        assert again.data() == got[10].data()
    await eventually(lambda: cluster.backlog(topic, SUBSCRIPTION), 2)
    left = await take(await subscribe(client, topic), 2)
    assert sorted(data(left)) == sorted(data(got[10:]))


async def test_a_cumulative_ack_on_a_partition_leaves_the_other_partitions(
    client: encore.Client, cluster: Cluster, topic: str
) -> None:
    await cluster.create_partitioned_topic(topic, 2)
    await publish(client, topic, bodies(20))
    async with await subscribe(client, topic, Exclusive) as consumer:
        got = await take(consumer, 20)
        of_topic = [each for each in got if each.message_id().partition() == 0]
        await consumer.acknowledge_cumulative(of_topic[-1])
    left = await take(await subscribe(client, topic, Exclusive), 20 - len(of_topic))
    assert {each.message_id().partition() for each in left} == {1}


async def test_a_seek_by_time_covers_all_partitions(
    client: encore.Client, cluster: Cluster, engine: Engine, topic: str
) -> None:
    await cluster.create_partitioned_topic(topic, 2)
    await publish(client, topic, bodies(10))
    consumer = await subscribe(client, topic)
    await consumer.acknowledge(await take(consumer, 10))
    await consumer.seek(1)
    try:
        again = await take(consumer, 10)
    except AssertionError:
        if engine.seeks_many:
            raise
        consumer.redeliver_unacknowledged_messages()  # as docs/broker-limits.md advises
        again = await take(consumer, 10)
    assert sorted(data(again)) == bodies(10)


async def test_one_consumer_reads_several_topics(
    client: encore.Client, cluster: Cluster, topic: str
) -> None:
    topics = [f"{topic}-{letter}" for letter in "abc"]
    for number, each in enumerate(topics):
        await publish(client, each, bodies(5, start=10 * number), batch=5 if number == 1 else 0)
    async with await subscribe(client, topics) as consumer:
        got = await take(consumer, 15)
        for number, each in enumerate(topics):
            of_topic = [message for message in got if message.topic_name() == each]
            assert data(of_topic) == bodies(5, start=10 * number)
        held = next(each for each in got if each.data() == b"00012")
        stored = MessageId.deserialize(held.message_id().serialize(), held.topic_name())
        await consumer.negative_acknowledge(stored, delay=0.2)
        [again] = await take(consumer, 1)
        assert (again.data(), again.topic_name()) == (b"00012", topics[1])
        await consumer.acknowledge([*(each for each in got if each is not held), again])
    for each in topics:
        await eventually(lambda name=each: cluster.backlog(name, SUBSCRIPTION), 0)  # type: ignore[misc]


async def test_an_id_without_its_topic_is_refused(client: encore.Client, topic: str) -> None:
    topics = [f"{topic}-{letter}" for letter in "ab"]
    for each in topics:
        await publish(client, each, [b"x"])
    consumer = await subscribe(client, topics)
    [got, _] = await take(consumer, 2)
    id_without_topic = MessageId.deserialize(got.message_id().serialize())
    with pytest.raises(encore.MessageNotHeldError, match="deserialize"):
        await consumer.acknowledge(id_without_topic)


async def test_a_pattern_does_not_add_the_letter_topics_of_its_own_subscription(
    client: encore.Client, topic: str
) -> None:
    """Otherwise a message that always fails would get letters of letters without end."""
    dead, other = f"{topic}-dead", f"{topic}-other-DLQ"
    letters = (f"{topic}-a-{SUBSCRIPTION}-DLQ", f"{topic}-a-{SUBSCRIPTION}-RETRY", dead)
    for each in (f"{topic}-a", *letters, other):
        await publish(client, each, [each.encode()])
    policy = encore.DeadLetterPolicy(1, dead_letter_topic=dead)
    pattern = re.compile(f"nothing|{topic.rpartition('/')[2]}-.*")  # without a namespace
    consumer = await subscribe(client, pattern, Shared, dead_letter_policy=policy)
    assert sorted(data(await take(consumer, 2))) == sorted([f"{topic}-a".encode(), other.encode()])
    with pytest.raises(encore.ReceiveTimeout):
        await consumer.receive(timeout=0.3)


async def test_a_pattern_matches_existing_and_new_topics(client: encore.Client, topic: str) -> None:
    await publish(client, f"{topic}-a", [b"a"])
    await publish(client, f"{topic}-b", [b"b"])
    await publish(client, f"{topic}x", [b"other"])
    consumer = await subscribe(
        client, re.compile(f"{topic}-.*"), Shared, pattern_auto_discovery_period=1
    )
    got = await take(consumer, 2)
    assert sorted(data(got)) == [b"a", b"b"]
    await publish(client, f"{topic}-c", [b"c"])
    got += await take(consumer, 1)
    assert got[2].topic_name() == f"{topic}-c"
    await consumer.negative_acknowledge(got[2], delay=0.2)
    [again] = await take(consumer, 1)
    assert (again.data(), again.redelivery_count()) == (b"c", 1)
