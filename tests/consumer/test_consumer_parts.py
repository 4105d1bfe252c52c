"""Statistics, the window's warning, non-persistent topics, closing in `async with`."""

from __future__ import annotations

import asyncio
import logging

import pytest
from consumer_kit import (
    REDELIVER,
    TOPIC,
    Subscribe,
    armed_timers,
    now_s,
    payloads,
    put_numbers,
    receive_n,
    receive_numbers,
)

from pulsar_encore import Client, ClosedError, ConsumerType
from pulsar_encore.testing import MemoryTransport

# Properties and statistics


async def test_statistics_count_queued_held_nacked_and_unsent_messages(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 12, batch=3)
    consumer = await subscribe(max_unacked_messages=240, ack_group_time_ms=1000)
    messages = await receive_n(consumer, 7)
    await consumer.acknowledge(messages[0])
    await consumer.acknowledge(messages[3:6])
    await consumer.negative_acknowledge(messages[1], delay=60)
    statistics = consumer.statistics()
    assert (statistics.queued, statistics.in_flight, statistics.nacked) == (5, 2, 1)
    assert statistics.unsent_acks == 2
    assert statistics.unacked == 8
    assert statistics.window_share == pytest.approx(8 / 240)
    assert statistics.connected
    await asyncio.sleep(2)
    assert consumer.statistics().unsent_acks == 0
    transport.disconnect()
    assert not consumer.statistics().connected
    assert consumer.statistics().queued == 0


async def test_one_warning_is_logged_before_the_unacked_window_is_full(
    transport: MemoryTransport, subscribe: Subscribe, caplog: pytest.LogCaptureFixture
) -> None:
    put_numbers(transport, 100)
    consumer = await subscribe(max_unacked_messages=100, receiver_queue_size=10)
    with caplog.at_level(logging.WARNING):
        for message in await receive_n(consumer, 60):
            await consumer.negative_acknowledge(message, delay=3600)
        assert caplog.records == []
        for message in await receive_n(consumer, 40):
            await consumer.negative_acknowledge(message, delay=3600)
    (record,) = caplog.records
    text = record.getMessage()
    assert "maxUnackedMessagesPerConsumer" in text
    assert "shorter nack delays" in text
    assert "100" in text


async def test_a_consumer_returns_its_topic_subscription_and_name(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer = await subscribe(consumer_name="me", subscription_name="mine")
    assert consumer.topic() == TOPIC
    assert consumer.subscription_name() == "mine"
    assert consumer.consumer_name() == "me"
    assert consumer.is_connected()
    transport.disconnect()
    assert not consumer.is_connected()


# Non-persistent topics


async def test_acks_and_nacks_on_a_non_persistent_topic_send_no_command(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    """All ids there are the same: acks and nacks mean nothing, and nothing may be mixed up."""
    topic = "non-persistent://public/default/t"
    consumer = await subscribe(topic, unacked_messages_timeout_ms=1000)
    for number in range(6):
        transport.put(topic, b"%d" % number)
    messages = await receive_n(consumer, 6)
    assert payloads(messages) == [b"%d" % number for number in range(6)]
    for message in messages[:3]:
        await consumer.acknowledge(message)
    for message in messages[3:5]:
        await consumer.negative_acknowledge(message, delay=0.1)
    await asyncio.sleep(10)
    assert transport.recorded(REDELIVER) == []
    assert transport.recorded("ACK") == []
    assert consumer.statistics().nacked == 0
    transport.put(topic, b"more")
    assert (await consumer.receive(timeout=1)).data() == b"more"


async def test_the_unacked_window_of_a_non_persistent_topic_is_never_full(
    transport: MemoryTransport, subscribe: Subscribe, caplog: pytest.LogCaptureFixture
) -> None:
    topic = "non-persistent://public/default/t"
    consumer = await subscribe(topic, max_unacked_messages=50)
    for _ in range(20):
        transport.put(topic, *[b"x"] * 5)
        await receive_n(consumer, 5)
    assert consumer.statistics().unacked == 0
    assert caplog.records == []


# Life


async def test_unsubscribe_deletes_the_subscription(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 2)
    consumer = await subscribe()
    await consumer.receive()
    await consumer.unsubscribe()
    assert transport.state(TOPIC).subscriptions == {}
    with pytest.raises(ClosedError):
        await consumer.receive()


async def test_unacked_messages_of_a_closed_consumer_go_to_another_consumer(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 6, batch=3)
    one = await subscribe()
    messages = await receive_n(one, 4)
    await one.acknowledge(messages[0])
    await one.negative_acknowledge(messages[1], delay=1000)
    await one.close()
    other = await subscribe()
    got = payloads(await receive_n(other, 5))
    assert got == [b"1", b"2", b"3", b"4", b"5"]


async def test_close_cancels_every_timer(transport: MemoryTransport, subscribe: Subscribe) -> None:
    consumer, messages = await receive_numbers(
        transport, subscribe, 3, unacked_messages_timeout_ms=1000
    )
    await consumer.negative_acknowledge(messages[0], delay=1)
    transport.disconnect()
    await consumer.acknowledge(messages[1])
    await asyncio.sleep(0.5)
    transport.reconnect()
    await consumer.close()
    before = len(transport.commands)
    await asyncio.sleep(100)
    assert len(transport.commands) == before
    assert armed_timers() == []


async def test_closing_a_client_closes_its_consumers_and_sends_their_acks(
    transport: MemoryTransport,
) -> None:
    async with Client("pulsar://memory:6650", transport=transport) as client:
        consumer = await client.subscribe("t", "s", ConsumerType.Shared)
        producer = await client.create_producer("t")
        sent = await producer.send(b"x", properties={"a": "b"}, partition_key="k")
        message = await consumer.receive()
        assert message.message_id() == sent
        assert message.properties() == {"a": "b"}
        assert message.partition_key() == "k"
        assert message.topic_name() == TOPIC
        await consumer.acknowledge(message)
        waiting = asyncio.ensure_future(consumer.receive())
        await asyncio.sleep(0)
    assert isinstance((await asyncio.gather(waiting, return_exceptions=True))[0], ClosedError)
    assert transport.consumers == []
    assert transport.backlog(TOPIC, "s") == 0
    assert now_s() < 1
