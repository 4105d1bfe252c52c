"""Seeking, and two consumers of one subscription."""

from __future__ import annotations

import asyncio

import pytest
from consumer_kit import (
    TOPIC,
    Subscribe,
    close_without_backlog,
    payloads,
    put_numbers,
    receive_all,
    receive_n,
    receive_numbers,
)

from pulsar_encore import ConfigurationError, MessageId, TransportError
from pulsar_encore.testing import MemoryTransport


async def test_a_seek_to_a_publish_time_delivers_messages_published_from_then_on(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 3)
    await asyncio.sleep(10)
    time_ms = transport.wall_ms()
    transport.put(TOPIC, b"3")
    consumer = await subscribe()
    await receive_n(consumer, 4)
    await consumer.seek(time_ms)
    assert payloads(await receive_all(consumer)) == [b"3"]


@pytest.mark.parametrize(
    ("index", "inclusive", "expected"),
    [
        (2, True, [b"2", b"3", b"4"]),
        (2, False, [b"3", b"4"]),
        (0, True, [b"0", b"1", b"2", b"3", b"4"]),
        (3, False, [b"4"]),
        (4, True, [b"4"]),
        (4, False, []),
    ],
)
async def test_a_seek_to_a_message_starts_at_it_or_after_it(
    transport: MemoryTransport,
    subscribe: Subscribe,
    index: int,
    inclusive: bool,
    expected: list[bytes],
) -> None:
    consumer, messages = await receive_numbers(
        transport, subscribe, 5, batch=4, start_message_id_inclusive=inclusive
    )
    await consumer.seek(messages[index].message_id())
    assert payloads(await receive_all(consumer)) == expected


async def test_a_waiting_receive_goes_on_after_a_seek(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 2)
    consumer = await subscribe()
    await receive_n(consumer, 2)
    waiting = asyncio.ensure_future(consumer.receive())
    await asyncio.sleep(1)
    await consumer.seek(MessageId.earliest)
    assert (await asyncio.wait_for(waiting, 5)).data() == b"0"


async def test_a_seek_while_disconnected_fails_and_keeps_messages_held(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer, messages = await receive_numbers(transport, subscribe, 2)
    transport.disconnect()
    with pytest.raises(TransportError):
        await consumer.seek(MessageId.earliest)
    transport.reconnect()
    await consumer.acknowledge(messages)
    await close_without_backlog(transport, consumer)


@pytest.mark.parametrize("position", [None, "x", -1, True, 1.5])
async def test_a_seek_to_an_invalid_position_is_refused(
    subscribe: Subscribe, position: object
) -> None:
    consumer = await subscribe()
    with pytest.raises(ConfigurationError):
        await consumer.seek(position)


async def test_close_during_a_seek_detaches_the_consumer(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer = await subscribe()
    seeking = asyncio.ensure_future(consumer.seek(MessageId.earliest))
    await consumer.close()
    await asyncio.gather(seeking, return_exceptions=True)
    assert transport.consumers == []


async def test_batch_messages_acked_by_another_consumer_stay_acked(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 4, batch=4)
    one = await subscribe()
    messages = await receive_n(one, 4)
    other = await subscribe()
    await one.acknowledge(messages[0])
    await asyncio.sleep(1)
    await other.acknowledge(messages[1].message_id())
    await asyncio.sleep(1)
    for message in messages[2:]:
        await one.negative_acknowledge(message, delay=1)
    got = await receive_all(one, 5) + await receive_all(other, 5)
    assert sorted(payloads(got)) == [b"2", b"3"]


async def test_a_receiver_queue_size_of_zero_receives_all_messages_in_order(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    numbers = put_numbers(transport, 3)
    consumer = await subscribe(receiver_queue_size=0)
    assert payloads(await receive_all(consumer)) == numbers
