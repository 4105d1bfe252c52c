"""Tables of delays in consumers: nacks, ack timeouts and letters; the statistics of the store."""

from __future__ import annotations

from typing import Any

import pytest
from consumer_kit import TOPIC, Subscribe, now_s, parts_of, put_numbers
from durable_kit import Host

from pulsar_encore import (
    Backoff,
    BackoffTable,
    Client,
    ConfigurationError,
    ConsumerType,
    DeadLetterPolicy,
    InitialPosition,
    StoreStatistics,
)
from pulsar_encore.testing import MemoryTransport

TABLE = [2, 7.0, 30]


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])
async def test_nack_delays_on_shared_and_key_shared_follow_the_backoff_table(
    transport: MemoryTransport, subscribe: Subscribe, kind: ConsumerType
) -> None:
    put_numbers(transport, 1)
    consumer = await subscribe(negative_ack_redelivery_backoff=TABLE, consumer_type=kind)
    for delay in [2, 7, 30, 30]:
        message = await consumer.receive(timeout=1000)
        began = now_s()
        await consumer.negative_acknowledge(message)
        again = await consumer.receive(timeout=1000)
        assert delay <= now_s() - began <= delay * 1.02 + 0.2
        await consumer.negative_acknowledge(again, 0)
        message = await consumer.receive(timeout=1000)
        await consumer.acknowledge(message)
        transport.put(TOPIC, b"next")
        for _ in range([2, 7, 30, 30].index(delay) + 1):
            message = await consumer.receive(timeout=1000)
            await consumer.negative_acknowledge(message, 0)


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("backoff", [TABLE, Backoff(min_delay=2, max_delay=30, multiplier=3.5)])
async def test_nack_delays_grow_on_exclusive_and_failover_without_a_broker_count(
    transport: MemoryTransport,
    subscribe: Subscribe,
    kind: ConsumerType,
    batch: int,
    backoff: Any,
) -> None:
    put_numbers(transport, batch, batch=batch)
    consumer = await subscribe(negative_ack_redelivery_backoff=backoff, consumer_type=kind)
    got = [await consumer.receive(timeout=1000) for _ in range(batch)]
    for message in got[:-1]:
        await consumer.acknowledge(message)
    message = got[-1]
    for count, delay in enumerate([2, 7, 24.5 if isinstance(backoff, Backoff) else 30, 30], 1):
        began = now_s()
        await consumer.negative_acknowledge(message)
        message = await consumer.receive(timeout=1000)
        assert delay <= now_s() - began <= delay * 1.02 + 0.2
        assert message.redelivery_count() == count
    await consumer.acknowledge(message)
    (state,) = parts_of(consumer).topic_states
    assert not state.attempts.failures, "an ack forgets the attempts"


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover])
async def test_ack_timeout_delays_grow_on_exclusive_and_failover_without_a_broker_count(
    transport: MemoryTransport, subscribe: Subscribe, kind: ConsumerType
) -> None:
    put_numbers(transport, 1)
    consumer = await subscribe(
        consumer_type=kind, unacked_messages_timeout_ms=1_000, ack_timeout_redelivery_backoff=TABLE
    )
    await consumer.receive()
    gaps = []
    for _ in range(4):
        began = now_s()
        await consumer.receive(timeout=1000)
        gaps.append(round(now_s() - began, 1))
    for gap, delay in zip(gaps, [2, 7, 30, 30], strict=True):
        assert 1 + delay <= gap <= (1 + delay) * 1.03 + 0.3, gaps


async def test_ack_timeouts_on_shared_follow_the_backoff_table(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 1)
    consumer = await subscribe(
        unacked_messages_timeout_ms=1_000, ack_timeout_redelivery_backoff=TABLE
    )
    await consumer.receive()
    for delay in [2, 7, 30, 30]:
        began = now_s()
        await consumer.receive(timeout=1000)
        assert 1 + delay <= now_s() - began <= (1 + delay) * 1.03 + 0.3


@pytest.mark.parametrize("table", [TABLE, tuple(TABLE), BackoffTable(TABLE)])
async def test_reconsume_later_follows_the_backoff_table(
    transport: MemoryTransport, client: Client, table: Any
) -> None:
    put_numbers(transport, 2)
    consumer = await client.subscribe(
        TOPIC,
        "s",
        ConsumerType.Shared,
        initial_position=InitialPosition.Earliest,
        retry_enable=True,
        dead_letter_policy=DeadLetterPolicy(10),
    )
    messages = [await consumer.receive(timeout=1) for _ in range(2)]
    for delay in [2, 7, 30, 30]:
        began = now_s()
        await consumer.reconsume_later(messages, table)
        messages = [await consumer.receive(timeout=1000) for _ in range(2)]
        assert delay - 0.01 <= now_s() - began <= delay + 1.5
    began = now_s()
    await consumer.reconsume_later(messages[0], Backoff(min_delay=1, max_delay=4))
    await consumer.receive(timeout=1000)
    assert 4 <= now_s() - began <= 6
    for bad in ([], [-1], [True], ["1"], "10", None, {1: 2}):
        with pytest.raises(ConfigurationError, match="delay"):
            await consumer.reconsume_later(messages[1], bad)  # type: ignore[arg-type]
    await consumer.acknowledge(messages[1])


async def test_consumer_statistics_include_the_store_until_close(
    host: Host, transport: MemoryTransport
) -> None:
    put_numbers(transport, 10)
    consumer = await host.start(state={"count_attempts": "before"})
    before = consumer.statistics().store
    assert isinstance(before, StoreStatistics)
    for _ in range(10):
        await consumer.negative_acknowledge(await consumer.receive(timeout=1), 3_600)
    store = consumer.statistics().store
    assert store is not None
    assert store.writes >= before.writes + 20 and store.operations >= store.writes
    assert (store.waiting, store.entries) == (10, 10)
    assert (store.failures, store.lost, store.unwritten, store.syncs) == (0, 0, 0, 0)
    await consumer.close()
    assert consumer.statistics().store is None


async def test_consumer_statistics_have_no_store_without_a_state(subscribe: Subscribe) -> None:
    assert (await subscribe()).statistics().store is None
