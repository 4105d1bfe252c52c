"""A message the application never saw has no attempts, however often it was redelivered.

The broker counts a redelivery of every message that `redeliver_unacknowledged_messages` gives back,
also of those that waited in a queue of ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from forwarding_kit import await_letters, bodies, open_consumer, publish

import pulsar_encore as encore
from pulsar_encore.devbroker import BrokerThread

TYPES = [encore.ConsumerType.Shared, encore.ConsumerType.KeyShared]
# Room for all in our own queue; for one there, the rest waits in the engine's.
QUEUES = [1000, 2]
SEEN_S = 0.2

Deliveries = list[tuple[bytes, int]]
Act = Callable[[encore.Consumer, encore.Message], Awaitable[bool]]


async def work(consumer: encore.Consumer, act: Act, quiet_s: float = 0.8) -> Deliveries:
    """Return the received messages with their counts; `act` decides whether to continue."""
    deliveries: Deliveries = []
    while True:
        try:
            message = await consumer.receive(timeout=quiet_s)
        except encore.ReceiveTimeout:
            return deliveries
        deliveries.append((message.data(), message.redelivery_count()))
        if not await act(consumer, message):
            return deliveries


async def open_plain(client: encore.Client, topic: str, **options: Any) -> encore.Consumer:
    return await open_consumer(client, topic, retry_enable=False, **options)


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("kind", TYPES)
async def test_only_the_poison_message_is_dead_lettered_by_repeated_redelivery_requests(
    stock: encore.Client,
    broker: BrokerThread,
    topic: str,
    kind: encore.ConsumerType,
    queue: int,
) -> None:
    good = [b"good %d" % number for number in range(6)]
    await publish(stock, topic, b"poison", *good, partition_key="k")

    async def act(consumer: encore.Consumer, message: encore.Message) -> bool:
        if message.data() == b"poison":
            await asyncio.sleep(SEEN_S)
            consumer.redeliver_unacknowledged_messages()
        else:
            await consumer.acknowledge(message)
        return True

    async with await open_plain(
        stock, topic, consumer_type=kind, receiver_queue_size=queue
    ) as consumer:
        deliveries = await work(consumer, act)
    assert [delivery for delivery in deliveries if delivery[0] == b"poison"] == [
        (b"poison", n) for n in range(3)
    ]
    assert sorted(delivery for delivery in deliveries if delivery[0] != b"poison") == [
        (each, 0) for each in good
    ]
    assert bodies(await await_letters(stock, f"{topic}-s-DLQ", 1)) == [b"poison"]


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("kind", TYPES)
async def test_redelivery_requests_before_a_receive_count_no_attempts(
    stock: encore.Client, topic: str, kind: encore.ConsumerType, queue: int
) -> None:
    """With and without time for the requested messages to arrive in between."""
    sent = [b"%d" % number for number in range(5)]
    await publish(stock, topic, *sent, partition_key="k")

    async def nack(consumer: encore.Consumer, message: encore.Message) -> bool:
        await consumer.negative_acknowledge(message)
        return True

    async with await open_plain(
        stock, topic, consumer_type=kind, receiver_queue_size=queue
    ) as consumer:
        for pause_s in (0.3, 0.3, 0.3, 0.3, 0.02, 0, 0.01, 0.3):
            await asyncio.sleep(pause_s)
            consumer.redeliver_unacknowledged_messages()
        deliveries = await work(consumer, nack)
    assert sorted(deliveries) == [(each, count) for each in sent for count in range(3)]
    assert sorted(bodies(await await_letters(stock, f"{topic}-s-DLQ", 5))) == sent


@pytest.mark.parametrize("queue", QUEUES)
async def test_redelivery_requests_before_a_receive_count_no_attempts_on_several_topics(
    stock: encore.Client, topic: str, queue: int
) -> None:
    topics = [f"{topic}-{number}" for number in range(3)]
    for each in topics:
        await publish(stock, each, b"a", b"b")

    async def ack(consumer: encore.Consumer, message: encore.Message) -> bool:
        await consumer.acknowledge(message)
        return True

    policy = encore.DeadLetterPolicy(2, dead_letter_topic=f"{topic}-dead")
    async with await open_consumer(
        stock,
        *topics,
        retry_enable=False,
        receiver_queue_size=queue,
        dead_letter_policy=policy,
    ) as consumer:
        for _ in range(4):
            await asyncio.sleep(0.3)
            consumer.redeliver_unacknowledged_messages()
        deliveries = await work(consumer, ack)
    assert sorted(deliveries) == [(b"a", 0)] * 3 + [(b"b", 0)] * 3


async def test_redelivery_requests_before_a_receive_count_no_attempts_on_the_retry_topic(
    stock: encore.Client, topic: str
) -> None:
    """Two subscriptions as one: each tells of its own sources."""
    await publish(stock, topic, b"a")
    await publish(stock, f"{topic}-s-RETRY", b"b")

    async def ack(consumer: encore.Consumer, message: encore.Message) -> bool:
        await consumer.acknowledge(message)
        return True

    async with await open_consumer(stock, topic, most=2, receiver_queue_size=1) as consumer:
        for _ in range(4):
            await asyncio.sleep(0.3)
            consumer.redeliver_unacknowledged_messages()
        assert sorted(await work(consumer, ack)) == [(b"a", 0), (b"b", 0)]


async def test_redelivery_requests_after_a_receive_count_as_attempts(
    stock: encore.Client, topic: str
) -> None:
    await publish(stock, topic, b"a")
    async with await open_plain(stock, topic) as consumer:
        for count in range(3):
            assert (await consumer.receive(timeout=5)).redelivery_count() == count
            consumer.redeliver_unacknowledged_messages()
        assert bodies(await await_letters(stock, f"{topic}-s-DLQ", 1)) == [b"a"]


async def test_a_message_queued_behind_a_chunked_message_has_no_attempts_after_reconnects(
    stock: encore.Client, broker: BrokerThread, topic: str
) -> None:
    """A second after a reconnect everything is requested again, for chunks that it cut in two."""
    large = bytes(6 * 2**20)
    await publish(stock, topic, large, chunking_enabled=True)
    await publish(stock, topic, b"held", b"queued")
    async with await open_plain(stock, topic) as consumer:
        await consumer.acknowledge(await consumer.receive(timeout=5))
        held = await consumer.receive(timeout=5)
        for _ in range(3):
            await asyncio.to_thread(broker.unload, topic)
            await asyncio.sleep(1.8)
        queued = await consumer.receive(timeout=5)
        assert (queued.data(), queued.redelivery_count()) == (b"queued", 0)
        await consumer.negative_acknowledge(held)
        again = await consumer.receive(timeout=5)
        assert (again.data(), again.redelivery_count()) == (b"held", 1)
