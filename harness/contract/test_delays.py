"""Delayed delivery at the broker: coarse, on Shared and KeyShared only.

Bounds are those measured on Pulsar 4.2 with its default tick of a second, not strict
(consumer-semantics 9.1): up to a tick early, below a tick not delayed.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest

import pulsar_encore as encore

from .contract_kit import before_marker, data, publish, subscribe, take

Exclusive, Shared = encore.ConsumerType.Exclusive, encore.ConsumerType.Shared
Failover, KeyShared = encore.ConsumerType.Failover, encore.ConsumerType.KeyShared

DELAY_S, EARLY_S = 1.6, 1.0  # `take` gives up long before a wrong delay would end


async def test_shared_types_wait(client: encore.Client, topic: str) -> None:
    async def wait(kind: encore.ConsumerType) -> float:
        mine = f"{topic}-{kind.name}"
        consumer = await subscribe(client, mine, kind)
        start = time.monotonic()
        await publish(client, mine, [b"late"], deliver_after=timedelta(seconds=DELAY_S))
        assert await before_marker(client, mine, consumer) == []
        assert data(await take(consumer, 1)) == [b"late"]
        return time.monotonic() - start

    for waited in await asyncio.gather(wait(Shared), wait(KeyShared)):
        assert waited >= DELAY_S - EARLY_S


async def test_a_delayed_message_once_due_is_redelivered_without_delay(
    client: encore.Client, topic: str
) -> None:
    consumer = await subscribe(client, topic)
    await publish(client, topic, [b"late"], deliver_at=int(time.time() * 1000) + 1200)
    [message] = await take(consumer, 1)
    took = []
    for count in range(1, 6):  # a busy machine may be late, but one that delays is never in time
        start = time.monotonic()
        await consumer.negative_acknowledge(message, delay=0.2)
        [message] = await take(consumer, 1)
        assert message.redelivery_count() == count
        took.append(time.monotonic() - start)
    assert min(took) < 0.9


@pytest.mark.parametrize("kind", [Exclusive, Failover])
async def test_other_types_do_not(
    client: encore.Client, topic: str, kind: encore.ConsumerType
) -> None:
    consumer = await subscribe(client, topic, kind)
    await publish(client, topic, [b"x"], deliver_after=timedelta(seconds=60))
    await take(consumer, 1, timeout=30)


async def test_below_a_tick_is_not_delayed(client: encore.Client, topic: str) -> None:
    consumer = await subscribe(client, topic)
    took = []
    for _ in range(5):  # a busy machine may be late, but one that delays is never in time
        start = time.monotonic()
        await publish(client, topic, [b"x"], deliver_after=timedelta(milliseconds=500))
        await take(consumer, 1)
        took.append(time.monotonic() - start)
    assert min(took) < 0.45
