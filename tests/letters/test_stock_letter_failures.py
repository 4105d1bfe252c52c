"""Letters that fail on the wire: refused, terminated, cut off, closed; nothing is missing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from forwarding_kit import (
    await_letters,
    bodies,
    handle_all,
    nack,
    open_consumer,
    publish,
    read_out,
    settled,
)

import pulsar_encore as encore
from pulsar_encore.devbroker import BrokerThread, Fault, FaultPlan

# Failures


async def until_buried(client: encore.Client, broker: BrokerThread, topic: str, count: int) -> int:
    """Nack `count` messages until they are dead letters; the PRODUCER commands it took."""
    async with await open_consumer(client, topic, most=1) as consumer:
        seen = await handle_all(consumer, nack, quiet_s=0.5)
        dead = await await_letters(client, f"{topic}-s-DLQ", count)
        assert len(dead) == len(set(bodies(dead))) == count
        assert set(seen.values()) == {2}
        await settled(broker, topic)
    tried = [
        command
        for command in broker.recorded("PRODUCER", "in")
        if command.command.producer.topic == f"{topic}-s-DLQ"
    ]
    return len(tried)


@pytest.mark.parametrize("error", ["ProducerBusy", "AuthorizationError", "TopicTerminatedError"])
async def test_a_refused_letter_producer_is_opened_again(
    stock: encore.Client, broker: BrokerThread, topic: str, error: str
) -> None:
    await publish(stock, topic, b"a", b"b", b"c")
    fault = Fault(kind="refuse", command="PRODUCER", topic=f"{topic}-s-DLQ", times=3, error=error)
    broker.faults = FaultPlan([fault])
    tried = await until_buried(stock, broker, topic, 3)
    assert tried == 4


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_terminated_dead_letter_topic_causes_no_hot_loop_and_keeps_the_messages(
    stock: encore.Client, broker: BrokerThread, topic: str, when: str
) -> None:
    """Java, terminated later: a hot loop of about 150 redeliveries a second and message."""
    dead_topic = f"{topic}-s-DLQ"
    await publish(stock, topic, b"first")
    async with await open_consumer(stock, topic, most=1) as consumer:
        if when == "after":
            await handle_all(consumer, nack, quiet_s=0.4)
        else:
            await asyncio.to_thread(broker.create_topic, dead_topic)
        await asyncio.to_thread(broker.terminate, dead_topic)
        await publish(stock, topic, b"a", b"b")
        await asyncio.to_thread(broker.forget_commands)
        await handle_all(consumer, nack, quiet_s=2)
        again = broker.recorded("REDELIVER_UNACKNOWLEDGED_MESSAGES", "in")
        assert 2 <= len(again) < 40
        assert await asyncio.to_thread(broker.backlog, topic, "s") == (2 if when == "after" else 3)
    # The next consumer receives them.
    async with await open_consumer(stock, topic, most=1) as consumer:
        assert (await consumer.receive(timeout=5)).data() in (b"first", b"a", b"b")


@pytest.mark.parametrize("kind", ["close_before", "close_after", "delay"])
async def test_a_connection_lost_while_letters_are_in_flight_loses_no_letter(
    stock: encore.Client, broker: BrokerThread, topic: str, kind: Any
) -> None:
    """Copied and not acked, or not copied: the engine sends again and nothing is missing."""
    await publish(stock, topic, *(b"%d" % each for each in range(20)))
    async with await open_consumer(stock, topic) as consumer:
        messages = [await consumer.receive(timeout=5) for _ in range(20)]
        broker.faults = FaultPlan([Fault(kind=kind, command="SEND", nth=10, delay_ms=300)])
        await consumer.reconsume_later(messages, 60)
        assert broker.faults.fired
        broker.faults = None
        copies = bodies(await await_letters(stock, f"{topic}-s-RETRY", 20))
        assert set(copies) == {b"%d" % each for each in range(20)}
        # The engine repeats sends without a receipt; the broker has no deduplication on.
        assert len(copies) <= 20 + 11
        await settled(broker, topic)
        with pytest.raises(encore.ReceiveTimeout):
            await consumer.receive(timeout=0.3)


async def test_an_outage_while_letters_are_in_flight_loses_no_letter(
    stock: encore.Client, broker: BrokerThread, topic: str
) -> None:
    await publish(stock, topic, *(b"%d" % each for each in range(200)))
    async with await open_consumer(stock, topic, most=2) as consumer:
        messages = [await consumer.receive(timeout=5) for _ in range(200)]
        task = asyncio.create_task(consumer.reconsume_later(messages, 60))
        await asyncio.sleep(0.005)
        await asyncio.to_thread(broker.outage, 0.3)
        await asyncio.wait({task}, timeout=20)
        assert task.done()
        failed = [] if task.exception() is None else task.exception().exceptions  # type: ignore[union-attr]
        assert all(isinstance(error, encore.TransportError) for error in failed)
        while True:  # failed messages are redelivered
            try:
                await consumer.reconsume_later(await consumer.receive(timeout=1), 60)
            except encore.ReceiveTimeout:
                break
        copies = bodies(await await_letters(stock, f"{topic}-s-RETRY", 200))
        assert set(copies) == {b"%d" % each for each in range(200)}
        await settled(broker, topic)


async def test_close_finishes_letters_in_flight(
    stock: encore.Client, broker: BrokerThread, topic: str
) -> None:
    """All that was begun is finished: copied and acked."""
    await publish(stock, topic, *(b"%d" % each for each in range(300)))
    consumer = await open_consumer(stock, topic)
    messages = [await consumer.receive(timeout=5) for _ in range(300)]
    task = asyncio.create_task(consumer.reconsume_later(messages, 60))
    await asyncio.sleep(0)
    await consumer.close()
    await task
    copies = bodies(await read_out(stock, f"{topic}-s-RETRY"))
    assert len(copies) == len(set(copies)) == 300
    assert await asyncio.to_thread(broker.backlog, topic, "s") == 0
