"""Wrong arguments raise an error that names them, before anything happens."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest
from consumer_kit import (
    REDELIVER,
    TOPIC,
    Subscribe,
    close_without_backlog,
    now_s,
    put_numbers,
    receive_numbers,
)

import pulsar_encore as encore
from pulsar_encore import (
    ConfigurationError,
    Consumer,
    ConsumerType,
    Message,
    MessageId,
    MessageNotHeldError,
)
from pulsar_encore.testing import MemoryTransport


@pytest.mark.parametrize("call", ["acknowledge", "negative_acknowledge", "acknowledge_cumulative"])
@pytest.mark.parametrize("position", [MessageId.earliest, MessageId.latest])
async def test_the_error_for_settling_a_position_says_that_it_is_a_position(
    subscribe: Subscribe, call: str, position: MessageId
) -> None:
    consumer = await subscribe(consumer_type=ConsumerType.Exclusive)
    with pytest.raises(ConfigurationError, match="is a position"):
        await getattr(consumer, call)(position)


@pytest.mark.parametrize("timeout", [float("nan"), -1, "3", True])
async def test_an_invalid_receive_timeout_is_refused(subscribe: Subscribe, timeout: Any) -> None:
    consumer = await subscribe()
    with pytest.raises(ConfigurationError, match="timeout"):
        await asyncio.wait_for(consumer.receive(timeout=timeout), 10)
    with pytest.raises(ConfigurationError, match="timeout_millis"):
        await asyncio.wait_for(consumer.receive("5"), 10)  # type: ignore[arg-type]


@pytest.mark.parametrize("call", ["acknowledge", "negative_acknowledge", "acknowledge_cumulative"])
async def test_errors_name_the_types_that_can_be_settled(subscribe: Subscribe, call: str) -> None:
    consumer = await subscribe(consumer_type=ConsumerType.Exclusive)
    for item in (5, "id", None, b"x", *([[5]] if call != "acknowledge" else [])):
        with pytest.raises(ConfigurationError, match=r"a Message or a MessageId, got .* list"):
            await getattr(consumer, call)(item)


@pytest.mark.parametrize("position", [1.5, datetime(2026, 1, 31)])
async def test_a_seek_by_a_time_that_is_no_int_is_refused(
    transport: MemoryTransport, client: encore.Client, subscribe: Subscribe, position: Any
) -> None:
    consumer = await subscribe()
    with pytest.raises(ConfigurationError, match="ms since the epoch as an int, got"):
        await consumer.seek(position)
    async with await client.create_reader(TOPIC, MessageId.earliest) as reader:
        with pytest.raises(ConfigurationError, match="ms since the epoch as an int, got"):
            await reader.seek(position)


async def test_a_reader_timeout_is_a_number_of_seconds_or_a_timedelta(
    transport: MemoryTransport, client: encore.Client, subscribe: Subscribe
) -> None:
    await subscribe()
    async with await client.create_reader(TOPIC, MessageId.earliest) as reader:
        begun = now_s()
        for timeout in (3, timedelta(seconds=3)):
            with pytest.raises(encore.ReceiveTimeout):
                await reader.read_next(timeout=timeout)
        assert now_s() - begun == pytest.approx(6)
        with pytest.raises(ConfigurationError, match="not both"):
            await reader.read_next(5, timeout=3)
        with pytest.raises(ConfigurationError, match="timeout"):
            await reader.read_next(timeout=-1)


@pytest.mark.parametrize("position", [None, "x", -1, True, 1.5, 2**70])
async def test_a_seek_to_anything_but_an_id_or_a_time_is_refused(
    subscribe: Subscribe, position: Any
) -> None:
    consumer = await subscribe()
    with pytest.raises(ConfigurationError):
        await consumer.seek(position)


async def test_a_nack_delay_that_is_too_long_is_refused_and_the_message_stays_held(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 1)
    consumer = await subscribe()
    message = await consumer.receive()
    with pytest.raises(ConfigurationError):
        await consumer.negative_acknowledge(message, delay=1e300)
    assert consumer.statistics().in_flight == 1


async def test_a_chunked_message_that_is_not_held_cannot_be_nacked_by_id(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    message_id = transport.put_chunked(TOPIC, b"large", 3)
    message_id = MessageId(-1, message_id.ledger_id(), 2, first_chunk=MessageId(-1, 0, 0))
    consumer = await subscribe()
    with pytest.raises(MessageNotHeldError, match="chunked"):
        await consumer.negative_acknowledge(message_id, delay=5)
    await consumer.acknowledge(await consumer.receive(timeout=1))
    await asyncio.sleep(20)
    assert consumer.statistics().unacked == 0
    assert transport.recorded(REDELIVER) == []


async def test_a_chunked_message_that_is_not_held_cannot_be_acked_by_id(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    """The id names only the last chunk: acking it alone would leave the other chunks unacked."""
    message_id = transport.put_chunked(TOPIC, b"large", 3)
    consumer = await subscribe(consumer_type=ConsumerType.Shared)
    with pytest.raises(MessageNotHeldError, match="all its chunks"):
        await consumer.acknowledge(message_id)
    message = await consumer.receive(timeout=1)
    await consumer.negative_acknowledge(message, delay=5)
    await consumer.acknowledge(message_id)  # a nacked message that waits can be acked
    await consumer.acknowledge(message_id)  # a second ack is accepted
    await asyncio.sleep(20)
    assert consumer.statistics().unacked == 0
    assert transport.recorded(REDELIVER) == []


async def test_a_chunked_message_from_before_a_seek_can_be_acked_after_its_redelivery(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    transport.put_chunked(TOPIC, b"first", 3)
    transport.put_chunked(TOPIC, b"large", 3)
    consumer = await subscribe(consumer_type=ConsumerType.Shared)
    settled, old = [await consumer.receive(timeout=1) for _ in range(2)]
    await consumer.acknowledge(settled)
    await consumer.seek(MessageId.latest)
    await consumer.acknowledge(settled)
    with pytest.raises(MessageNotHeldError, match="redelivered"):
        await consumer.acknowledge(old)
    await consumer.seek(MessageId.earliest)
    again = [await consumer.receive(timeout=1) for _ in range(2)]
    assert [each.data() for each in again] == [b"first", b"large"]
    await consumer.acknowledge(old)
    await consumer.acknowledge(again[0])
    await asyncio.sleep(1)
    assert consumer.statistics().unacked == 0


async def test_a_listener_paused_while_it_waits_gets_no_message_until_it_is_resumed(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    seen: list[bytes] = []

    def listen(_: Consumer, message: Message) -> None:
        seen.append(message.data())

    consumer = await subscribe(message_listener=listen)
    await asyncio.sleep(1)
    consumer.pause_message_listener()
    put_numbers(transport, 2)
    await asyncio.sleep(5)
    assert seen == []
    consumer.resume_message_listener()
    await asyncio.sleep(1)
    assert seen == [b"0", b"1"]


async def test_a_message_object_of_an_earlier_delivery_acks_the_queued_redelivery(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer, (message,) = await receive_numbers(transport, subscribe, 1)
    await consumer.negative_acknowledge(message, delay=0.1)
    await asyncio.sleep(0.3)
    await consumer.acknowledge(message)  # the message is queued here again by now
    await close_without_backlog(transport, consumer)


@pytest.mark.parametrize("length", [-1, 0, 0.0001, 31 * 86_400, float("nan"), float("inf")])
async def test_a_lease_length_outside_1_ms_to_30_days_is_refused(
    subscribe: Subscribe, length: float
) -> None:
    consumer = await subscribe()
    with pytest.raises(ConfigurationError, match=r"^lease must be from 1 ms to 30 days, got"):
        await consumer.pop(lease=length)
