"""Delayed delivery at the broker: coarse, and on Shared and Key_Shared only.

The bounds are measured on Pulsar 4.2 with its default tick of 1 s, not strict. A message may be up
to a tick early, and a delay below a tick is ignored.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest

import pulsar_encore as encore

from .contract_kit import data, publish, subscribe, take

Exclusive, Shared = encore.ConsumerType.Exclusive, encore.ConsumerType.Shared
Failover, KeyShared = encore.ConsumerType.Failover, encore.ConsumerType.KeyShared

DELAY_S, EARLY_S = 1.6, 1.0  # `take` gives up long before a wrong delay would end


async def test_shared_and_key_shared_delay_messages(client: encore.Client, topic: str) -> None:
    async def wait(kind: encore.ConsumerType) -> float:
        own_topic = f"{topic}-{kind.name}"
        consumer = await subscribe(client, own_topic, kind)
        start = time.monotonic()
        await publish(client, own_topic, [b"late"], deliver_after=timedelta(seconds=DELAY_S))
        assert data(await take(consumer, 1)) == [b"late"]
        return time.monotonic() - start

    for waited in await asyncio.gather(wait(Shared), wait(KeyShared)):
        assert waited >= DELAY_S - EARLY_S


async def test_a_delayed_message_is_redelivered_without_its_delay(
    client: encore.Client, topic: str
) -> None:
    consumer = await subscribe(client, topic)
    await publish(client, topic, [b"late"], deliver_at=int(time.time() * 1000) + 1200)
    [message] = await take(consumer, 1)
    durations = []
    for count in range(1, 6):  # the shortest counts: a busy machine may be late
        start = time.monotonic()
        await consumer.negative_acknowledge(message, delay=0.2)
        [message] = await take(consumer, 1)
        assert message.redelivery_count() == count
        durations.append(time.monotonic() - start)
    assert min(durations) < 0.9


@pytest.mark.parametrize("kind", [Exclusive, Failover])
async def test_exclusive_and_failover_do_not_delay_messages(
    client: encore.Client, topic: str, kind: encore.ConsumerType
) -> None:
    consumer = await subscribe(client, topic, kind)
    await publish(client, topic, [b"x"], deliver_after=timedelta(seconds=60))
    await take(consumer, 1, timeout=30)


async def test_a_delay_below_the_brokers_tick_is_ignored(client: encore.Client, topic: str) -> None:
    consumer = await subscribe(client, topic)
    durations = []
    for _ in range(5):  # the shortest counts: a busy machine may be late
        start = time.monotonic()
        await publish(client, topic, [b"x"], deliver_after=timedelta(milliseconds=500))
        await take(consumer, 1)
        durations.append(time.monotonic() - start)
    assert min(durations) < 0.45
