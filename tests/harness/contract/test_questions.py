"""Questions to a running consumer: its pending messages, its lag, and paused topics."""

from __future__ import annotations

import asyncio

import pytest

import pulsar_encore as encore

from .cluster import Cluster, Engine
from .contract_kit import bodies, data, publish, subscribe, take

Exclusive = encore.ConsumerType.Exclusive


async def test_a_paused_topic_holds_up_no_other(client: encore.Client, topic: str) -> None:
    """The queue of the paused topic is full, and stays bounded."""
    other = f"{topic}-other"
    sent = bodies(200)
    await publish(client, topic, sent, batch=10)
    consumer = await subscribe(client, [topic, other], receiver_queue_size=20)
    await take(consumer, 1)
    consumer.pause(topic)
    await publish(client, other, sent, batch=10)
    assert data(await take(consumer, 200)) == sent
    with pytest.raises(encore.ReceiveTimeout):
        await consumer.receive(timeout=0.3)
    consumer.resume(topic)
    assert sorted(data(await take(consumer, 199))) == sent[1:]
    await consumer.close()


async def test_the_only_topic_paused_by_its_name_leaves_messages_to_others(
    client: encore.Client, topic: str
) -> None:
    """Of a Shared subscription: no other topic needs the permits, so the queue stays bounded."""
    sent = bodies(600)
    paused = await subscribe(client, topic, receiver_queue_size=20)
    other = await subscribe(client, topic, receiver_queue_size=20)
    paused.pause(topic)
    await publish(client, topic, sent)
    got = data(await take(other, 500))
    assert paused.statistics().queued <= 100
    await paused.close()
    got += data(await take(other, 100))
    assert sorted(got) == sent
    await other.close()


async def test_a_paused_consumer_acks_and_receives_later(client: encore.Client, topic: str) -> None:
    sent = bodies(100)
    await publish(client, topic, sent)
    consumer = await subscribe(client, topic, receiver_queue_size=10)
    first = await take(consumer, 5)
    consumer.pause()
    for message in first:
        await consumer.acknowledge(message)
    with pytest.raises(encore.ReceiveTimeout):
        await consumer.receive(timeout=0.3)
    consumer.resume()
    assert data(await take(consumer, 95)) == sent[5:]
    await consumer.close()


async def test_a_partitioned_topic_is_paused_with_all_its_partitions(
    client: encore.Client, cluster: Cluster, topic: str
) -> None:
    await cluster.create_partitioned_topic(topic, 3)
    sent = bodies(30)
    consumer = await subscribe(client, topic)
    consumer.pause(topic)
    await publish(client, topic, sent)
    with pytest.raises(encore.ReceiveTimeout):
        await consumer.receive(timeout=0.5)
    consumer.resume(topic)
    assert sorted(data(await take(consumer, 30))) == sent
    await consumer.close()


async def test_a_seek_while_paused(client: encore.Client, topic: str) -> None:
    sent = bodies(10)
    ids = await publish(client, topic, sent)
    consumer = await subscribe(client, topic, Exclusive)
    await take(consumer, 3)
    consumer.pause()
    await consumer.seek(ids[4])
    consumer.resume()
    assert data(await take(consumer, 5)) == sent[5:]
    await consumer.close()


async def test_pending_messages_by_state(client: encore.Client, topic: str) -> None:
    ids = await publish(client, topic, bodies(3))
    consumer = await subscribe(client, topic, negative_ack_redelivery_delay_ms=60_000)
    messages = await take(consumer, 3)
    await consumer.negative_acknowledge(messages[0])
    await consumer.acknowledge(messages[1])
    held, nacked = consumer.pending()
    assert (held.state, nacked.state) == ("in_flight", "nacked")
    expected = [f"{each.ledger_id()}:{each.entry_id()}:{each.partition()}" for each in ids]
    assert (held.id, nacked.id) == (expected[2], expected[0])
    assert held.attempt == 1 and nacked.due is not None
    await consumer.close()


async def test_the_lag_without_a_web_service_is_an_estimate(
    client: encore.Client, engine: Engine, topic: str
) -> None:
    consumer = await subscribe(client, topic)
    lag = await consumer.lag()
    assert lag.messages == 0 and lag.seconds == 0 and not lag.exact
    await publish(client, topic, bodies(10))
    messages = await take(consumer, 5)
    async with asyncio.timeout(5):
        while not consumer.statistics().queued:  # the age is that of a message at hand
            await asyncio.sleep(0.05)
    lag = await consumer.lag()
    assert lag.messages == 10
    assert lag.seconds is not None and 0 <= lag.seconds < 60
    (by_topic,) = lag.topics
    assert by_topic.topic == topic and not by_topic.exact
    for message in messages:
        await consumer.acknowledge(message)
    await consumer.flush()
    async with asyncio.timeout(5):
        while (await consumer.lag()).messages != 5:
            await asyncio.sleep(0.05)
    await consumer.close()


async def test_the_lag_of_partitions_is_summed(
    client: encore.Client, cluster: Cluster, engine: Engine, topic: str
) -> None:
    await cluster.create_partitioned_topic(topic, 3)
    consumer = await subscribe(client, topic)
    await publish(client, topic, bodies(30))
    await take(consumer, 30)
    lag = await consumer.lag()
    assert {each.topic for each in lag.topics} == {topic}
    assert lag.messages == (None if engine.name == "stock" else 30)
    await consumer.close()
