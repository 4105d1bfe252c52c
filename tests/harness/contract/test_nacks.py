"""Redelivery after a nack: after its own delay, once, and with the right count."""

from __future__ import annotations

import asyncio
import time

import pytest

import pulsar_encore as encore

from .contract_kit import before_marker, bodies, data, publish, subscribe, take

Exclusive, Shared = encore.ConsumerType.Exclusive, encore.ConsumerType.Shared
Failover, KeyShared = encore.ConsumerType.Failover, encore.ConsumerType.KeyShared

EARLY_S = 0.06  # the C++ client's nack timer may be a tick early


def not_early(waited: float, delay: float) -> bool:
    """True if the delay is kept. Lateness depends on the machine and is not checked. `take` times
    out long before any default delay ends.
    """
    return waited >= delay - EARLY_S


@pytest.mark.parametrize("kind", [Shared, KeyShared])
async def test_nacked_messages_are_redelivered_after_their_delay_and_counted(
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


async def test_siblings_in_one_batch_keep_their_own_delays(
    client: encore.Client, topic: str
) -> None:
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


async def test_nacks_of_one_entry_close_together_redeliver_no_acked_message(
    client: encore.Client, topic: str
) -> None:
    """The second request arrives before the acks of the messages that the first one redelivered."""

    async def nack_two_siblings(gap_s: float) -> list[encore.Message]:
        own_topic = f"{topic}-{gap_s}"
        await publish(client, own_topic, bodies(3), batch=3)
        consumer = await subscribe(client, own_topic)
        got = await take(consumer, 3)
        await consumer.negative_acknowledge(got[0], delay=0.2)
        await consumer.negative_acknowledge(got[1], delay=0.2 + gap_s)
        await consumer.acknowledge(got[2])
        for message in await take(consumer, 2):
            await consumer.acknowledge(message)
        await asyncio.sleep(0.25)  # all requested messages have arrived
        return await before_marker(client, own_topic, consumer)

    assert await asyncio.gather(*map(nack_two_siblings, (0.04, 0.08, 0.12))) == [[], [], []]


async def test_a_second_nack_changes_the_due_time_and_an_ack_cancels_it(
    client: encore.Client, topic: str
) -> None:
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


async def test_a_stream_of_nacks_delays_no_redelivery(client: encore.Client, topic: str) -> None:
    await publish(client, topic, bodies(24))
    consumer = await subscribe(client, topic)
    got = await take(consumer, 24)
    start = time.monotonic()
    receive_task = asyncio.create_task(take(consumer, 1))
    await consumer.negative_acknowledge(got[0], delay=0.4)
    count_of_nacks, others = 0, got[1:]
    # The stream lasts until the first message is redelivered, and at least until all were nacked
    # once.
    while count_of_nacks < len(others) or not receive_task.done():
        if count_of_nacks < len(others) or not consumer.statistics().queued:
            await consumer.negative_acknowledge(others[count_of_nacks % len(others)], delay=0.4)
        count_of_nacks += 1
        await asyncio.sleep(0.025)
    [first] = await receive_task
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
async def test_a_nack_on_exclusive_or_failover_rewinds_to_the_first_unacked_message(
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


async def test_redeliver_unacknowledged_messages_redelivers_everything_at_once(
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


async def test_an_ack_timeout_redelivers_the_unacked_message(
    client: encore.Client, topic: str
) -> None:
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


async def test_pending_nacks_are_redelivered_at_once_when_the_consumer_closes(
    client: encore.Client, topic: str
) -> None:
    await publish(client, topic, bodies(2))
    async with await subscribe(client, topic) as consumer:
        for message in await take(consumer, 2):
            await consumer.negative_acknowledge(message, delay=60)
    again = await take(await subscribe(client, topic), 2)
    assert data(again) == bodies(2)
    assert {message.redelivery_count() for message in again} == {0}
