"""Full unacked windows, unloaded and terminated topics, killed consumers, and named errors."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from random import Random, randrange

import pytest

import pulsar_encore as encore
from pulsar_encore.schema import Integer, JsonSchema, Record, String, StringSchema

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
    work_off,
)

Exclusive, Shared = encore.ConsumerType.Exclusive, encore.ConsumerType.Shared
Failover, KeyShared = encore.ConsumerType.Failover, encore.ConsumerType.KeyShared

_REPOSITORY = Path(__file__).resolve().parents[3]


class Order(Record):  # type: ignore[misc]
    number = Integer(required=True)
    customer = String()


async def test_a_full_unacked_window_is_reported_and_delivery_continues_after_acks(
    cluster: Cluster, engine: Engine, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    place = await cluster.place(window=20)
    topic = place.topic(topic)
    async with engine.client(place.url) as client:
        await publish(client, topic, bodies(60))
        consumer = await subscribe(client, topic, receiver_queue_size=4, max_unacked_messages=20)
        with caplog.at_level(logging.WARNING, "pulsar_encore"):
            held = await take(consumer, 20)
            with pytest.raises(encore.ReceiveTimeout):
                for _ in range(20):
                    held.append(await consumer.receive(timeout=0.25))
        warnings = [each for each in caplog.messages if "maxUnackedMessagesPerConsumer" in each]
        assert len(warnings) == 1
        assert consumer.statistics().window_share >= 1
        for message in held:  # nacked messages fill the window as well
            await consumer.negative_acknowledge(message, delay=60)
        with pytest.raises(encore.ReceiveTimeout):
            await consumer.receive(timeout=0.2)
        assert consumer.statistics().nacked == len(held)
        await consumer.acknowledge(held)
        rest: list[encore.Message] = []
        while len(rest) < 60 - len(held):
            rest += await take(consumer, 1)
            await consumer.acknowledge(rest[-1])
        assert data(held + rest) == bodies(60)


@pytest.mark.parametrize("kind", [Shared, KeyShared, Exclusive, Failover])
async def test_unloads_lose_no_message_and_redeliver_no_acked_one(
    client: encore.Client, cluster: Cluster, topic: str, kind: encore.ConsumerType
) -> None:
    seed = randrange(2**32)
    print(f"seed {seed}")
    rng = Random(seed)
    sent = bodies(400)
    await publish(client, topic, sent[:200], batch=10)
    await publish(client, topic, sent[200:])
    consumer = await subscribe(client, topic, kind, receiver_queue_size=50)
    unloads = {rng.randrange(50, 350) for _ in range(2)}

    async def unload(received: int) -> None:
        if received in unloads:
            await cluster.unload(topic)

    share = 0.3 if kind in (Shared, KeyShared) else 0.02
    again = await work_off(consumer, sent, rng, step=unload, nack_share=share)
    assert again == []
    await eventually(lambda: cluster.backlog(topic, SUBSCRIPTION), 0)


async def test_messages_held_during_an_unload_are_not_redelivered_and_can_be_acked(
    client: encore.Client, cluster: Cluster, topic: str
) -> None:
    await publish(client, topic, bodies(6), batch=3)
    consumer = await subscribe(client, topic)
    held = await take(consumer, 6)
    await consumer.acknowledge(held[0])
    await cluster.unload(topic)
    assert await before_marker(client, topic, consumer) == []
    await consumer.negative_acknowledge(held[1], delay=0.2)
    assert data(await take(consumer, 1)) == [held[1].data()]
    await consumer.acknowledge([held[2], held[3], held[5]])
    await consumer.close()
    reopened = await subscribe(client, topic)
    assert data(await take(reopened, 2)) == [held[1].data(), held[4].data()]
    assert await before_marker(client, topic, reopened) == []


@pytest.mark.parametrize("mode", ["hold", "settle"])
async def test_a_killed_process_loses_no_message(
    client: encore.Client, cluster: Cluster, engine: Engine, topic: str, mode: str
) -> None:
    sent = bodies(60)
    await publish(client, topic, sent, batch=4)
    program = [sys.executable, "-m", "tests.harness.contract.crash_process"]
    process = await asyncio.create_subprocess_exec(
        *program,
        *(cluster.url, topic, engine.name, mode),
        cwd=_REPOSITORY,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    settled = set()
    for _ in range(20):
        settled.add((await asyncio.wait_for(process.stdout.readline(), 20)).strip())
    process.kill()
    settled |= set((await process.stdout.read()).split())
    await process.wait()
    assert settled <= set(sent)
    survivor = await subscribe(client, topic)
    got: set[bytes] = set()
    missing = set(sent) - (settled if mode == "settle" else set())
    while missing - got:
        [message] = await take(survivor, 1)
        got.add(message.data())
        await survivor.acknowledge(message)
    await before_marker(client, topic, survivor)
    await eventually(lambda: cluster.backlog(topic, SUBSCRIPTION), 0)


async def test_json_values_are_read_as_written(client: encore.Client, topic: str) -> None:
    orders = [Order(number=number, customer=f"c{number}") for number in range(3)]
    await publish(client, topic, orders, schema=JsonSchema(Order))
    consumer = await subscribe(client, topic, schema=JsonSchema(Order))
    got = [message.value() for message in await take(consumer, 3)]
    assert [(each.number, each.customer) for each in got] == [(0, "c0"), (1, "c1"), (2, "c2")]


async def test_an_incompatible_schema_is_refused(client: encore.Client, topic: str) -> None:
    await publish(client, topic, [Order(number=1)], schema=JsonSchema(Order))
    with pytest.raises(encore.TransportError) as refused:
        await client.create_producer(topic, schema=StringSchema())
    assert refused.value.result == "IncompatibleSchema"
    with pytest.raises(encore.TransportError) as refused:
        await subscribe(client, topic, schema=StringSchema())
    assert refused.value.result == "IncompatibleSchema"


async def test_unsubscribe_deletes_the_subscription(client: encore.Client, topic: str) -> None:
    await publish(client, topic, bodies(3))
    consumer = await subscribe(client, topic)
    await consumer.acknowledge((await take(consumer, 3))[0])
    await consumer.unsubscribe()
    with pytest.raises(encore.ClosedError):
        await consumer.receive(timeout=1)
    assert data(await take(await subscribe(client, topic), 3)) == bodies(3)


async def test_a_second_exclusive_consumer_is_refused(client: encore.Client, topic: str) -> None:
    async with await subscribe(client, topic, Exclusive):
        for kind in (Exclusive, Shared):
            with pytest.raises(encore.TransportError, match="another consumer holds") as refused:
                await subscribe(client, topic, kind)
            assert (refused.value.result, refused.value.retryable) == ("ConsumerBusy", True)
    await (await subscribe(client, topic, Exclusive)).close()


async def test_a_missing_topic_without_auto_creation_raises_topic_not_found(
    cluster: Cluster, engine: Engine, topic: str
) -> None:
    place = await cluster.place(creation=False)
    async with engine.client(place.url, operation_timeout_seconds=5) as client:
        for attempt in (
            subscribe(client, place.topic(topic)),
            client.create_producer(place.topic(topic)),
            client.create_reader(place.topic(topic), encore.MessageId.earliest),
        ):
            with pytest.raises(encore.TransportError) as refused:
                await attempt
            assert refused.value.result == "TopicNotFound"


async def test_a_terminated_topic_is_read_to_its_end(
    client: encore.Client, cluster: Cluster, topic: str
) -> None:
    await publish(client, topic, bodies(3))
    consumer = await subscribe(client, topic)
    await cluster.terminate(topic)
    got = await take(consumer, 3)
    await consumer.negative_acknowledge(got[1], delay=0.2)
    await consumer.acknowledge([got[0], got[2]])
    assert data(await take(consumer, 1)) == [b"00001"]
    with pytest.raises(encore.TransportError) as refused:
        await client.create_producer(topic)
    assert refused.value.result == "TopicTerminated"
