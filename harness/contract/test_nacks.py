"""When a message comes back: after its own delay, once, and with the right count."""

from __future__ import annotations

import asyncio
import time

import pytest

import pulsar_encore as encore

from .contract_kit import before_marker, bodies, data, publish, subscribe, take

Exclusive, Shared = encore.ConsumerType.Exclusive, encore.ConsumerType.Shared
Failover, KeyShared = encore.ConsumerType.Failover, encore.ConsumerType.KeyShared

EARLY_S = 0.06  # the stock client's nack timer may be a tick early


def not_early(waited: float, delay: float) -> bool:
    """How late is a busy machine's to say; `take` gives up long before any default delay ends."""
    return waited >= delay - EARLY_S


@pytest.mark.parametrize("kind", [Shared, KeyShared])
async def test_nacked_messages_come_back_after_their_delay_and_are_counted(
    client: encore.Client, topic: str, kind: encore.ConsumerType
) -> None:
    await publish(client, topic, bodies(3))
    consumer = await subscribe(client, topic, kind)
    first, second, third = await take(consumer, 3)
    await consumer.acknowledge([first, third])
    for count in (1, 2):
        nacked = time.monotonic()
        await consumer.negative_acknowledge(second, delay=0.2)
        [again] = await take(consumer, 1)
        assert not_early(time.monotonic() - nacked, 0.2)
        assert (again.data(), again.redelivery_count()) == (second.data(), count)
        second = again
    assert await before_marker(client, topic, consumer) == []


async def test_two_delays_in_one_batch(client: encore.Client, topic: str) -> None:
    sent = bodies(4)
    await publish(client, topic, sent, batch=4)
    consumer = await subscribe(client, topic)
    got = await take(consumer, 4)
    await consumer.acknowledge(got[0])
    start = time.monotonic()
    await consumer.negative_acknowledge(got[1], delay=2.5)
    await consumer.negative_acknowledge(got[2], delay=0.4)
    for body, delay, waiting in ((sent[2], 0.4, 1), (sent[1], 2.5, 0)):
        [again] = await take(consumer, 1)
        assert (again.data(), again.redelivery_count()) == (body, 1)
        assert consumer.statistics().nacked == waiting
        assert not_early(time.monotonic() - start, delay), (body, time.monotonic() - start)
        await consumer.acknowledge(again)
    assert await before_marker(client, topic, consumer) == []
    await consumer.acknowledge(got[3])
    await consumer.close()
    assert await before_marker(client, topic, await subscribe(client, topic)) == []


async def test_nacks_of_one_entry_close_together_bring_nothing_acked(
    client: encore.Client, topic: str
) -> None:
    """The second request overtakes the acks of what the first brought."""

    async def twice(apart: float) -> list[encore.Message]:
        mine = f"{topic}-{apart}"
        await publish(client, mine, bodies(3), batch=3)
        consumer = await subscribe(client, mine)
        got = await take(consumer, 3)
        await consumer.negative_acknowledge(got[0], delay=0.2)
        await consumer.negative_acknowledge(got[1], delay=0.2 + apart)
        await consumer.acknowledge(got[2])
        for message in await take(consumer, 2):
            await consumer.acknowledge(message)
        await asyncio.sleep(0.25)  # whatever was asked for is here
        return await before_marker(client, mine, consumer)

    assert await asyncio.gather(*map(twice, (0.04, 0.08, 0.12))) == [[], [], []]


async def test_a_second_nack_moves_and_an_ack_cancels(client: encore.Client, topic: str) -> None:
    sent = bodies(2)
    await publish(client, topic, sent)
    consumer = await subscribe(client, topic)
    moved, cancelled = await take(consumer, 2)
    start = time.monotonic()
    await consumer.negative_acknowledge(moved, delay=30)
    await consumer.negative_acknowledge(cancelled, delay=0.2)
    await consumer.negative_acknowledge(moved, delay=0.5)
    await consumer.acknowledge(cancelled)
    [again] = await take(consumer, 1)
    assert again.data() == sent[0]
    assert not_early(time.monotonic() - start, 0.5)
    assert await before_marker(client, topic, consumer) == []
    assert consumer.statistics().nacked == 0


async def test_a_stream_of_nacks_postpones_nothing(client: encore.Client, topic: str) -> None:
    await publish(client, topic, bodies(24))
    consumer = await subscribe(client, topic)
    got = await take(consumer, 24)
    start = time.monotonic()
    watching = asyncio.create_task(take(consumer, 1))
    await consumer.negative_acknowledge(got[0], delay=0.4)
    turn, rest = 0, got[1:]
    # The stream lasts for as long as the first is away, and at least until all were nacked once.
    while turn < len(rest) or not watching.done():
        if turn < len(rest) or not consumer.statistics().queued:
            await consumer.negative_acknowledge(rest[turn % len(rest)], delay=0.4)
        turn += 1
        await asyncio.sleep(0.025)
    [first] = await watching
    assert first.data() == b"00000"
    assert not_early(time.monotonic() - start, 0.4)
    assert sorted(data(await take(consumer, 23))) == bodies(23, start=1)


async def test_backoff_grows_with_the_count(client: encore.Client, topic: str) -> None:
    await publish(client, topic, bodies(1))
    backoff = encore.Backoff(min_delay=0.15, max_delay=0.4, multiplier=2, jitter=0)
    consumer = await subscribe(client, topic, negative_ack_redelivery_backoff=backoff)
    [message] = await take(consumer, 1)
    for delay in (0.15, 0.3, 0.4):
        start = time.monotonic()
        await consumer.negative_acknowledge(message)
        [message] = await take(consumer, 1)
        assert not_early(time.monotonic() - start, delay), (delay, time.monotonic() - start)


@pytest.mark.parametrize("kind", [Exclusive, Failover])
async def test_exclusive_rewinds_to_the_first_unacked(
    client: encore.Client, topic: str, kind: encore.ConsumerType
) -> None:
    sent = bodies(6)
    await publish(client, topic, sent)
    consumer = await subscribe(client, topic, kind)
    got = await take(consumer, 6)
    await consumer.acknowledge([got[0], got[3]])
    await consumer.negative_acknowledge(got[4], delay=0.4)
    again = await take(consumer, 4)
    assert data(again) == [sent[at] for at in (1, 2, 4, 5)]
    await consumer.acknowledge_cumulative(again[-1])
    assert await before_marker(client, topic, consumer) == []


async def test_redeliver_unacknowledged_brings_everything_now(
    client: encore.Client, topic: str
) -> None:
    sent = bodies(5)
    await publish(client, topic, sent)
    consumer = await subscribe(client, topic)
    got = await take(consumer, 5)
    await consumer.acknowledge(got[2])
    await consumer.negative_acknowledge(got[0], delay=30)
    await asyncio.sleep(0.3)  # the ack is sent
    consumer.redeliver_unacknowledged_messages()
    assert sorted(data(await take(consumer, 4))) == [sent[at] for at in (0, 1, 3, 4)]
    assert await before_marker(client, topic, consumer) == []


async def test_ack_timeout_of_a_second(client: encore.Client, topic: str) -> None:
    await publish(client, topic, bodies(3))
    consumer = await subscribe(client, topic, unacked_messages_timeout_ms=1000)
    start = time.monotonic()
    got = await take(consumer, 3)
    await consumer.acknowledge([got[0], got[2]])
    [again] = await take(consumer, 1)
    assert (again.data(), again.redelivery_count()) == (b"00001", 1)
    assert not_early(time.monotonic() - start, 1.0)
    await consumer.acknowledge(again)
    assert await before_marker(client, topic, consumer) == []


async def test_pending_nacks_go_back_at_once_when_the_consumer_closes(
    client: encore.Client, topic: str
) -> None:
    await publish(client, topic, bodies(2))
    async with await subscribe(client, topic) as consumer:
        for message in await take(consumer, 2):
            await consumer.negative_acknowledge(message, delay=60)
    again = await take(await subscribe(client, topic), 2)
    assert data(again) == bodies(2)
    assert {message.redelivery_count() for message in again} == {0}
