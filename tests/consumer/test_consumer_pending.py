"""`Consumer.pending`: each message that was delivered, with its state and its due time."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from consumer_kit import TOPIC, Subscribe, put_numbers, receive_n

from pulsar_encore import ConfigurationError, ConsumerType
from pulsar_encore.testing import MemoryTransport


@pytest.mark.parametrize("batch", [1, 3])
async def test_states_of_delivered_messages(
    transport: MemoryTransport, subscribe: Subscribe, batch: int
) -> None:
    put_numbers(transport, 6, batch=batch)
    consumer = await subscribe(negative_ack_redelivery_delay_ms=60_000)
    assert consumer.pending() == [], "queued messages are left out"
    messages = await receive_n(consumer, 4)
    (lease,) = await consumer.pop(1, lease=30)
    await consumer.negative_acknowledge(messages[1], 10)
    await consumer.negative_acknowledge(messages[0])
    await consumer.acknowledge(messages[2])
    pending = consumer.pending()
    assert [each.state for each in pending] == ["in_flight", "leased", "nacked", "nacked"]
    held, leased, first, second = pending
    parts = [messages[3], lease.message, messages[1], messages[0]]
    for each, message in zip(pending, parts, strict=True):
        where = message.message_id()
        text = f"{where.ledger_id()}:{where.entry_id()}:-1"
        assert each.id == (f"{text}:{where.batch_index()}" if batch > 1 else text)
        assert each.topic == TOPIC
    assert held.attempt == 1 and held.due is None and held.since is None
    assert leased.since is not None and leased.due is not None
    assert leased.due - leased.since == timedelta(seconds=30)
    assert first.due is not None and second.due is not None and first.due < second.due
    assert 49 < (second.due - first.due).total_seconds() < 51
    assert consumer.pending(limit=3) == pending[:3]


async def test_a_nacked_message_of_failover(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 2)
    consumer = await subscribe(consumer_type=ConsumerType.Failover)
    (message,) = await receive_n(consumer, 1)
    await consumer.negative_acknowledge(message)
    (pending,) = consumer.pending()
    assert pending.state == "nacked" and pending.attempt == 1 and pending.due is not None


async def test_an_ack_timeout_tells_when_the_message_was_delivered(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 1)
    consumer = await subscribe(unacked_messages_timeout_ms=10_000)
    await receive_n(consumer, 1)
    (before,) = consumer.pending()
    await asyncio.sleep(5)
    (pending,) = consumer.pending()
    assert pending == before
    assert pending.due is not None and pending.since is not None
    assert pending.due - pending.since == timedelta(seconds=10)


async def test_a_limit_below_one_is_refused(subscribe: Subscribe) -> None:
    consumer = await subscribe()
    with pytest.raises(ConfigurationError, match="limit"):
        consumer.pending(limit=0)


async def test_reading_does_not_change_what_is_due(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 300)
    consumer = await subscribe(negative_ack_redelivery_delay_ms=5_000)
    for message in await receive_n(consumer, 300):
        await consumer.negative_acknowledge(message)
    assert len(consumer.pending()) == 300
    again = await receive_n(consumer, 300)
    assert {each.redelivery_count() for each in again} == {1}
    assert {each.attempt for each in consumer.pending()} == {2}
