"""Held messages that are released, that fail in place, or that are rejected; and flushed acks."""

from __future__ import annotations

import asyncio

import pytest

import pulsar_encore as encore
from pulsar_encore import letters
from pulsar_encore.values.letter_topic_names import shared_dead_topic_of

from .cluster import Cluster, Engine
from .contract_kit import (
    SUBSCRIPTION,
    ack_all,
    before_marker,
    bodies,
    data,
    eventually,
    publish,
    subscribe,
    take,
)

ALL_TYPES = pytest.mark.parametrize("kind", list(encore.ConsumerType))
BATCHES = pytest.mark.parametrize("batch", [0, 3])


def dead_topic(topic: str) -> str:
    return shared_dead_topic_of(topic, SUBSCRIPTION)


def key_names(count: int) -> list[str]:
    return ["k"] * count


async def await_no_backlog(cluster: Cluster, topic: str) -> None:
    await eventually(lambda: cluster.backlog(topic, SUBSCRIPTION), 0)


@ALL_TYPES
@BATCHES
async def test_released_messages_are_received_first_and_are_no_attempts(
    client: encore.Client, topic: str, kind: encore.ConsumerType, batch: int
) -> None:
    sent = bodies(6)
    await publish(client, topic, sent, batch=batch, keys=key_names(6))
    consumer = await subscribe(client, topic, kind)
    got = await take(consumer, 4)
    await consumer.acknowledge(got[0])
    for message in (got[3], got[1], got[2]):
        consumer.release(message)
    again = await take(consumer, 5)
    assert data(again) == sent[1:]
    assert {each.attempt for each in again} == {1}
    await ack_all(consumer, again)
    assert await before_marker(client, topic, consumer) == []


@ALL_TYPES
@BATCHES
async def test_messages_released_before_a_close_cost_the_next_consumer_no_attempt(
    client: encore.Client, topic: str, kind: encore.ConsumerType, batch: int
) -> None:
    sent = bodies(6)
    await publish(client, topic, sent, batch=batch, keys=key_names(6))
    consumer = await subscribe(client, topic, kind)
    got = await take(consumer, 4)
    await consumer.acknowledge(got[0])
    for message in got[1:]:
        consumer.release(message)
    await consumer.flush()
    await consumer.close()
    consumer = await subscribe(client, topic, kind)
    again = await take(consumer, 5)
    assert [(each.data(), each.attempt) for each in again] == [(body, 1) for body in sent[1:]]
    await ack_all(consumer, again)
    assert await before_marker(client, topic, consumer) == []


@ALL_TYPES
@BATCHES
async def test_a_failure_in_place_is_counted_and_redelivers_nothing(
    client: encore.Client, topic: str, kind: encore.ConsumerType, batch: int
) -> None:
    sent = bodies(6)
    await publish(client, topic, sent, batch=batch, keys=key_names(6))
    consumer = await subscribe(client, topic, kind)
    got = await take(consumer, 4)
    held = consumer.fail_in_place(consumer.fail_in_place(got[1], error="busy"))
    assert (held.data(), held.attempt) == (sent[1], 3)
    rest = await take(consumer, 2)
    assert [(each.data(), each.attempt) for each in rest] == [(body, 1) for body in sent[4:]]
    assert consumer.holds(held) and not consumer.holds(got[1])
    await ack_all(consumer, [got[0], held, *got[2:], *rest])
    assert await before_marker(client, topic, consumer) == []


@ALL_TYPES
@BATCHES
async def test_a_failure_in_place_survives_a_reconnect(
    client: encore.Client,
    cluster: Cluster,
    topic: str,
    kind: encore.ConsumerType,
    batch: int,
) -> None:
    sent = bodies(3)
    await publish(client, topic, sent, batch=batch, keys=key_names(3))
    consumer = await subscribe(client, topic, kind)
    got = await take(consumer, 3)
    held = consumer.fail_in_place(got[1])
    await cluster.unload(topic)
    assert await before_marker(client, topic, consumer) == []
    assert consumer.holds(held)
    held = consumer.fail_in_place(held)
    assert held.attempt == 3
    await ack_all(consumer, [got[0], held, got[2]])
    await consumer.flush()
    await consumer.close()
    await await_no_backlog(cluster, topic)


async def test_flushed_acks_survive_a_client_that_is_not_closed(
    cluster: Cluster, engine: Engine, client: encore.Client, topic: str
) -> None:
    sent = bodies(20)
    await publish(client, topic, sent, batch=5)
    ending = engine.client(cluster.url)
    consumer = await subscribe(ending, topic, ack_group_time_ms=60_000)
    got = await take(consumer, 20)
    await ack_all(consumer, got[:13])
    await consumer.flush()
    if not engine.capabilities.receipts:
        await asyncio.sleep(1)
    ending.shutdown()
    consumer = await subscribe(client, topic)
    again = await take(consumer, 7)
    assert sorted(data(again)) == sent[13:]
    await ack_all(consumer, again)
    assert await before_marker(client, topic, consumer) == []


@ALL_TYPES
async def test_rejected_messages_of_all_partitions_share_a_dead_letter_topic(
    client: encore.Client, cluster: Cluster, topic: str, kind: encore.ConsumerType
) -> None:
    sent = bodies(6)
    await cluster.create_partitioned_topic(topic, 2)
    await publish(client, topic, sent, keys=[f"k{each}" for each in range(6)])
    policy = encore.DeadLetterPolicy(9, dead_topic, initial_subscription_name="inspect")
    consumer = await subscribe(client, topic, kind, dead_letter_policy=policy)
    assert await consumer.create_letter_subscriptions() == [dead_topic(topic)]
    got = await take(consumer, 6)
    for message in got[:4]:
        await message.reject(ValueError("no total"))
    await ack_all(consumer, got[4:])
    await consumer.flush()
    inspecting = await client.subscribe(
        dead_topic(topic), "inspect", encore.ConsumerType.Shared, receiver_queue_size=10
    )
    stored = await take(inspecting, 4)
    assert sorted(data(stored)) == sorted(data(got[:4]))
    assert {each.properties()[letters.ERROR_MESSAGE] for each in stored} == {"no total"}
    await ack_all(inspecting, stored)
    counters = consumer.counters()
    assert (counters.received, counters.acked, counters.rejected) == (6, 2, 4)
    await consumer.close()
    await await_no_backlog(cluster, topic)


async def test_attempts_count_on_over_the_retry_letter_topic(
    client: encore.Client, topic: str
) -> None:
    await publish(client, topic, [b"a"])
    consumer = await subscribe(client, topic, retry_enable=True)
    [message] = await take(consumer, 1)
    message = consumer.fail_in_place(message)
    for attempt in (3, 4):
        await consumer.send_to_retry_topic(message, 0.2, error="busy")
        [message] = await take(consumer, 1)
        assert (message.data(), message.attempt) == (b"a", attempt)
    await message.ack()
    assert await before_marker(client, topic, consumer) == []
