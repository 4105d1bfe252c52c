"""Closing a consumer that is disconnected: its acks wait for the connection, within a limit."""

from __future__ import annotations

import asyncio
import logging

import pytest
from consumer_kit import (
    TOPIC,
    Subscribe,
    logged,
    now_s,
    parts_of,
    put_numbers,
    receive_n,
    receive_numbers,
    settle,
)

from pulsar_encore import ClosedError, ConsumerType
from pulsar_encore.devbroker import Fault, FaultPlan
from pulsar_encore.exceptions import InvalidTopicName
from pulsar_encore.testing import MemoryTransport


@pytest.mark.parametrize("cumulative", [False, True])
async def test_close_waits_for_the_reconnect_to_send_acks_made_while_disconnected(
    transport: MemoryTransport, subscribe: Subscribe, cumulative: bool
) -> None:
    consumer, messages = await receive_numbers(
        transport, subscribe, 6, batch=2, consumer_type=ConsumerType.Exclusive
    )
    transport.disconnect()
    if cumulative:
        await consumer.acknowledge_cumulative(messages[-1])
    else:
        await consumer.acknowledge(messages)
    closing = asyncio.create_task(consumer.close())
    waiting = asyncio.create_task(consumer.receive())
    await asyncio.sleep(2)
    assert not closing.done()
    with pytest.raises(ClosedError):  # a pending receive ends at once
        await waiting
    transport.reconnect()
    await closing
    assert transport.backlog(TOPIC, "s") == 0
    assert not transport.consumers


async def test_close_logs_acks_that_could_not_be_sent(
    transport: MemoryTransport, subscribe: Subscribe, caplog: pytest.LogCaptureFixture
) -> None:
    consumer, messages = await receive_numbers(transport, subscribe, 5)
    transport.disconnect()
    await consumer.acknowledge(messages[:3])
    begun = now_s()
    with caplog.at_level(logging.WARNING, "pulsar_encore"):
        await consumer.close()
    assert now_s() - begun == pytest.approx(5, abs=0.2)
    (record,) = logged(caplog)
    assert f"{TOPIC}/s" in record.getMessage() and "acks of 3 entries" in record.getMessage()


async def test_close_waits_for_the_reconnect_and_logs_acks_that_may_be_lost(
    transport: MemoryTransport, subscribe: Subscribe, caplog: pytest.LogCaptureFixture
) -> None:
    """One of several topics is disconnected, and it is unknown which: acks may have been lost."""
    consumer, messages = await receive_numbers(transport, subscribe, 3)
    parts_of(consumer).delivery_handler.on_uncertain()
    await consumer.acknowledge(messages)
    await asyncio.sleep(1)
    closing = asyncio.create_task(consumer.close())
    await asyncio.sleep(2)
    assert not closing.done()
    with caplog.at_level(logging.WARNING, "pulsar_encore"):
        await closing
    (record,) = logged(caplog)
    assert "those of 3 may be lost" in record.getMessage()


async def test_close_without_acks_to_send_does_not_wait_for_the_reconnect(
    transport: MemoryTransport, subscribe: Subscribe, caplog: pytest.LogCaptureFixture
) -> None:
    put_numbers(transport, 1)
    consumer = await subscribe()
    await receive_n(consumer, 1)
    transport.disconnect()
    begun = now_s()
    await consumer.close()
    assert now_s() == begun
    assert not logged(caplog)


async def test_a_close_cancelled_with_its_loop_still_detaches_from_the_subscription(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer, (message,) = await receive_numbers(transport, subscribe, 1)
    transport.disconnect()
    await consumer.acknowledge(message)
    closing = asyncio.create_task(consumer.close())
    await asyncio.sleep(1)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    await settle()
    assert not transport.consumers


async def test_a_consumer_that_failed_for_good_closes_at_once_and_logs_its_unsent_ack(
    subscribe: Subscribe, transport: MemoryTransport, caplog: pytest.LogCaptureFixture
) -> None:
    put_numbers(transport, 2)
    consumer = await subscribe()
    [first, second] = await receive_n(consumer, 2)
    refused = Fault(kind="refuse", command="SUBSCRIBE", error="InvalidTopicName", times=99)
    transport.faults = FaultPlan([refused])
    transport.disconnect()
    await consumer.acknowledge(first)
    transport.reconnect()
    await asyncio.sleep(1)
    with pytest.raises(InvalidTopicName):
        await consumer.receive()
    began = now_s()
    await consumer.close()
    assert now_s() - began < 0.01
    assert any("acks of 1 entries were not sent" in each.message for each in logged(caplog))
    assert second.data() == b"1"


async def test_a_message_that_waits_after_close_starts_no_redelivery_timer(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    """Else the alarm of redeliveries would ring for ever, and keep the closed consumer alive."""
    put_numbers(transport, 2)
    consumer = await subscribe()
    for _ in range(2):
        await consumer.negative_acknowledge(await consumer.receive(), delay=1)
    await consumer.close()
    (state,) = parts_of(consumer).topic_states
    assert state.next_due() is not None
    parts_of(consumer).redelivery.rearm(state)
    assert parts_of(consumer).redelivery._alarm._handle is None


@pytest.mark.parametrize("steps", range(12))
async def test_a_cancelled_close_ends_as_cancelled_also_when_another_close_replaces_it(
    transport: MemoryTransport, subscribe: Subscribe, steps: int
) -> None:
    consumer, messages = await receive_numbers(transport, subscribe, 2)
    transport.disconnect()
    await consumer.acknowledge(messages)
    closing = asyncio.create_task(consumer.close())
    await asyncio.sleep(1)
    consumer.close_soon()
    for _ in range(steps):
        await asyncio.sleep(0)
    if closing.cancel():
        with pytest.raises(asyncio.CancelledError):
            await closing
    await consumer.close()
    transport.reconnect()
    await settle()
    assert not transport.consumers
