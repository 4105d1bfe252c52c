"""Paused topics: nothing of them is delivered, and everything else goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from consumer_kit import TOPIC, Subscribe

from pulsar_encore import (
    BatchReceivePolicy,
    ConfigurationError,
    Consumer,
    ConsumerType,
    ReceiveTimeout,
)
from pulsar_encore.consumer.delivery.paused_topics import PausedTopics
from pulsar_encore.testing import MemoryTransport

OTHER = f"{TOPIC}2"
KINDS = pytest.mark.parametrize("kind", ["receive", "batch_receive", "pop", "ordered"])


async def consumer_of(subscribe: Subscribe, *topics: str, **options: Any) -> Consumer:
    return await subscribe(*(topics or (TOPIC, OTHER)), **options)


def put(transport: MemoryTransport, topic: str, *numbers: int) -> None:
    for each in numbers:
        transport.put(topic, b"%s:%d" % (topic[-1].encode(), each), key=f"k{each % 3}")


async def rest(consumer: Consumer) -> list[str]:
    """Receive and ack everything that arrives within a second."""
    got = []
    while True:
        try:
            message = await consumer.receive(timeout=1)
        except ReceiveTimeout:
            return got
        got.append(message.data().decode())
        await consumer.acknowledge(message)


async def rest_by(consumer: Consumer, kind: str) -> list[str]:
    if kind == "receive":
        return await rest(consumer)
    got: list[str] = []
    while True:
        if kind == "batch_receive":
            messages = await consumer.batch_receive()
            for each in messages:
                await consumer.acknowledge(each)
        else:
            leases = await consumer.pop(5, wait=1)
            messages = [lease.message for lease in leases]
            for lease in leases:
                await lease.ack()
        if not messages:
            return got
        got += [each.data().decode() for each in messages]


async def one_by(consumer: Consumer, kind: str) -> Any:
    if kind == "receive":
        return await consumer.receive()
    if kind == "batch_receive":
        return await consumer.batch_receive()
    return await consumer.pop(2, wait=60)


@KINDS
async def test_a_paused_topic_waits_and_the_other_goes_on(
    transport: MemoryTransport, subscribe: Subscribe, kind: str
) -> None:
    options: dict[str, Any] = {}
    if kind == "ordered":
        options = {"consumer_type": ConsumerType.KeyShared, "ordered_leases": True}
    consumer = await consumer_of(subscribe, receiver_queue_size=10, **options)
    for topic in (TOPIC, OTHER):
        put(transport, topic, *range(5))
    await asyncio.sleep(1)
    consumer.pause(TOPIC)
    consumer.pause(TOPIC)
    for topic in (TOPIC, OTHER):
        put(transport, topic, *range(5, 50))
    assert sorted(await rest_by(consumer, kind)) == sorted(f"2:{each}" for each in range(50))
    assert consumer.statistics().queued <= 20, "the queue of the paused topic is bounded"
    consumer.resume(TOPIC)
    consumer.resume(TOPIC)
    got = await rest_by(consumer, kind)
    expected = [f"t:{each}" for each in range(50)]
    assert sorted(got) == sorted(expected) and (got == expected or kind == "ordered")
    assert consumer.statistics().unacked == 0


@KINDS
async def test_a_paused_consumer_delivers_nothing_and_a_waiting_call_goes_on_after_it(
    transport: MemoryTransport, subscribe: Subscribe, kind: str
) -> None:
    options: dict[str, Any] = {}
    if kind == "ordered":
        options = {"consumer_type": ConsumerType.KeyShared, "ordered_leases": True}
    options["batch_receive_policy"] = BatchReceivePolicy(2, -1, 5000)
    consumer = await consumer_of(subscribe, **options)
    put(transport, TOPIC, 1, 2)
    consumer.pause()
    assert await rest_by(consumer, kind) == []
    waiting = asyncio.create_task(one_by(consumer, kind))
    await asyncio.sleep(1)
    assert not waiting.done()
    consumer.resume()
    assert await asyncio.wait_for(waiting, 1)


async def test_a_paused_batch_continues_in_its_middle(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    transport.put(TOPIC, *[b"%d" % each for each in range(6)])
    consumer = await consumer_of(subscribe)
    assert [(await consumer.receive()).data() for _ in range(2)] == [b"0", b"1"]
    consumer.pause(TOPIC)
    with pytest.raises(ReceiveTimeout):
        await consumer.receive(timeout=1)
    consumer.resume()
    assert [(await consumer.receive()).data() for _ in range(4)] == [b"2", b"3", b"4", b"5"]
    assert consumer.counters().received == 6


async def test_the_latest_call_for_a_topic_decides(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put(transport, TOPIC, 1)
    put(transport, OTHER, 1)
    consumer = await consumer_of(subscribe)
    consumer.pause()
    consumer.resume(OTHER)
    assert await rest(consumer) == ["2:1"]
    assert consumer.is_paused(TOPIC) and not consumer.is_paused(OTHER)
    consumer.resume()
    assert await rest(consumer) == ["t:1"]
    assert not consumer.is_paused()


async def test_a_partitioned_topic_stands_for_its_partitions(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    transport.catalogue.create_partitioned(TOPIC, 2)
    first, second = f"{TOPIC}-partition-0", f"{TOPIC}-partition-1"
    put(transport, first, 1)
    put(transport, second, 2)
    consumer = await consumer_of(subscribe, TOPIC)
    consumer.pause(TOPIC)
    assert await rest(consumer) == []
    consumer.resume(second)
    assert await rest(consumer) == ["1:2"]


async def test_a_topic_that_is_not_read_is_refused(subscribe: Subscribe) -> None:
    consumer = await consumer_of(subscribe)
    with pytest.raises(ConfigurationError, match=r"does not read .*/nope; it reads"):
        consumer.pause("nope")
    with pytest.raises(ConfigurationError, match="does not read"):
        consumer.resume("nope")


async def test_nacks_and_ack_timeouts_of_a_paused_topic(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put(transport, TOPIC, 1, 2, 3)
    consumer = await consumer_of(
        subscribe, unacked_messages_timeout_ms=10_000, negative_ack_redelivery_delay_ms=1000
    )
    message = await consumer.receive()
    consumer.pause()
    await consumer.negative_acknowledge(message)
    await asyncio.sleep(60)
    consumer.resume()
    counts = {}
    for _ in range(3):
        each = await consumer.receive(timeout=1)
        counts[each.data()] = each.redelivery_count()
    assert counts == {b"t:1": 1, b"t:2": 0, b"t:3": 0}, "only the nacked one has failed"


async def test_a_seek_drops_the_messages_of_a_paused_topic(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put(transport, TOPIC, 1, 2, 3)
    consumer = await consumer_of(subscribe, TOPIC)
    message = await consumer.receive()
    consumer.pause()
    await consumer.seek(message.message_id())
    consumer.resume()
    assert await rest(consumer) == ["t:2", "t:3"]


async def test_a_rewind_of_a_paused_topic_keeps_the_order(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put(transport, TOPIC, 1, 2, 3, 4)
    consumer = await consumer_of(subscribe, TOPIC, consumer_type=ConsumerType.Failover)
    await consumer.receive()
    consumer.pause()
    consumer.redeliver_unacknowledged_messages()
    await asyncio.sleep(1)
    consumer.resume()
    assert await rest(consumer) == ["t:1", "t:2", "t:3", "t:4"]


async def test_a_listener_waits_while_its_topic_is_paused(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    got: list[str] = []
    consumer = await consumer_of(
        subscribe, message_listener=lambda _, message: got.append(message.data().decode())
    )
    consumer.pause(TOPIC)
    put(transport, TOPIC, 1)
    put(transport, OTHER, 1)
    await asyncio.sleep(1)
    assert got == ["2:1"]
    consumer.resume()
    await asyncio.sleep(1)
    assert got == ["2:1", "t:1"]


async def test_a_message_that_is_given_back_waits_in_its_place(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put(transport, TOPIC, 1, 2, 3)
    consumer = await consumer_of(subscribe, TOPIC)
    taken = [await consumer.receive() for _ in range(2)]
    consumer.pause()
    for each in reversed(taken):
        consumer.release(each)
    assert await rest(consumer) == []
    consumer.resume()
    assert await rest(consumer) == ["t:1", "t:2", "t:3"]


async def test_close_ends_a_receive_of_a_paused_consumer(subscribe: Subscribe) -> None:
    from pulsar_encore import ClosedError

    consumer = await consumer_of(subscribe)
    consumer.pause()
    waiting = asyncio.create_task(consumer.receive())
    await asyncio.sleep(1)
    await consumer.close()
    with pytest.raises(ClosedError):
        await waiting


@pytest.mark.parametrize("retry", [False, True])
def test_the_pause_of_the_only_topic_is_a_pause_of_everything(retry: bool) -> None:
    """A transport whose topics share permits must then not ask for more messages to keep."""
    only, letters = "persistent://public/default/t", "persistent://public/default/t-s-RETRY"
    declared = [only, letters] if retry else [only]
    paused = PausedTopics(lambda number: only, declared)
    paused.set(only, True)
    assert paused.is_everything is not retry
    paused.set(letters, True)
    assert paused.is_everything
    paused.set(f"{only}-partition-1", False)
    assert not paused.is_everything
    paused.set(only, False)
    assert not paused.is_everything
    paused.set(None, True)
    assert paused.is_everything


def test_a_pattern_has_further_topics_when_one_is_paused() -> None:
    name = "persistent://public/default/t"
    paused = PausedTopics(lambda number: name, ())
    paused.set(name, True)
    assert not paused.is_everything
