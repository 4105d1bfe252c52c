"""Letters on the wire: the stock engine and the development broker, where memory proves nothing."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from forwarding_kit import (
    Act,
    await_letters,
    bodies,
    look,
    nack,
    named,
    open_consumer,
    read_out,
    reconsume,
)
from pulsar.schema import Integer, JsonSchema, Record

import pulsar_encore as encore
from pulsar_encore import letters
from pulsar_encore.devbroker import BrokerThread, Fault, FaultPlan

_numbers = itertools.count()


class Order(Record):  # type: ignore[misc]
    number = Integer()


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/t{next(_numbers)}"


@pytest_asyncio.fixture(autouse=True)
async def no_faults(broker: BrokerThread) -> AsyncIterator[None]:
    yield
    broker.faults = None


async def publish(client: encore.Client, topic: str, *payloads: Any, **options: Any) -> None:
    """One message after another, unbatched unless told; None is a tombstone."""
    of_message = {
        name: options.pop(name)
        for name in ("partition_key", "ordering_key", "event_timestamp")
        if name in options
    }
    options.setdefault("batching_enabled", False)
    async with await client.create_producer(topic, **options) as producer:
        sends = [producer.send(payload, **of_message) for payload in payloads]
        await asyncio.gather(*sends)


async def settled(broker: BrokerThread, topic: str) -> None:
    """Until the subscription has nothing left; acks are grouped."""
    for _ in range(200):
        if await asyncio.to_thread(broker.backlog, topic, "s") == 0:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{topic} has a backlog")


# Copies


@pytest.mark.parametrize("act", [nack, reconsume])
async def test_everything_is_copied(
    stock: encore.Client, broker: BrokerThread, topic: str, act: Act
) -> None:
    await publish(
        stock, topic, b"\x00\xff", partition_key="k", ordering_key="o", event_timestamp=1234
    )
    await publish(stock, topic, b"plain")
    await publish(stock, topic, None, partition_key="gone")
    async with await open_consumer(stock, topic, most=1) as consumer:
        seen = await look(consumer, act, quiet_s=0.7)
    assert seen == Counter({b"\x00\xff": 2, b"plain": 2, b"": 2})
    for where in (
        (f"{topic}-s-RETRY", f"{topic}-s-DLQ") if act is reconsume else (f"{topic}-s-DLQ",)
    ):
        full, plain, none = sorted(await await_letters(stock, where, 3), key=_by_origin)
        assert (full.data(), full.partition_key(), full.ordering_key()) == (b"\x00\xff", "k", "o")
        assert full.event_timestamp() == 1234
        assert (plain.data(), plain.partition_key(), plain.event_timestamp()) == (b"plain", "", 0)
        assert (none.has_null_value(), none.partition_key()) == (True, "gone")
    await settled(broker, topic)


def _by_origin(message: encore.Message) -> int:
    return int(message.properties()[letters.ORIGIN_MESSAGE_ID].split(":")[1])


async def test_the_schema_goes_along(
    stock: encore.Client, broker: BrokerThread, topic: str
) -> None:
    schema = JsonSchema(Order)
    await publish(stock, topic, Order(number=7), schema=schema)
    async with await open_consumer(stock, topic, most=1, schema=schema) as consumer:
        await consumer.reconsume_later(await consumer.receive(timeout=5))
        letter = await consumer.receive(timeout=5)
        assert letter.value().number == 7
        assert letter.int_schema_version() >= 0
        await consumer.reconsume_later(letter)
    (dead,) = await read_out(stock, f"{topic}-s-DLQ", schema)
    assert dead.value().number == 7
    made = {
        command.command.producer.topic: command.command.producer
        for command in broker.recorded("PRODUCER", "in")
    }
    for where in (f"{topic}-s-RETRY", f"{topic}-s-DLQ"):
        assert made[where].schema.schema_data


async def test_a_binary_ordering_key_is_refused_and_the_message_stays(
    stock: encore.Client, topic: str
) -> None:
    """The engine cannot read it; a letter without it, or with another, would be a lie."""
    await publish_binary(stock, topic)
    async with await open_consumer(stock, topic, most=1) as consumer:
        message = await consumer.receive(timeout=5)
        with pytest.raises(encore.NotSupportedError, match="raw bytes"):
            await consumer.reconsume_later(message)
        await consumer.negative_acknowledge(message)
        again = await consumer.receive(timeout=5)
        await consumer.negative_acknowledge(again)  # its last look: it cannot be buried either
        await asyncio.sleep(0.8)
        assert await read_out(stock, f"{topic}-s-RETRY") == []
        assert consumer.statistics().unacked == 1
    async with await open_consumer(stock, topic, most=5) as consumer:
        assert (await consumer.receive(timeout=5)).data() == b"bytes"


async def publish_binary(client: encore.Client, topic: str) -> None:
    import _pulsar
    import pulsar

    url = client._transport._options.service_url  # type: ignore[attr-defined]

    def send() -> None:
        native = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        try:
            producer = native.create_producer(topic)
            builder = _pulsar.MessageBuilder()
            builder.content(b"bytes")
            builder.ordering_key(b"\xff\xfe")
            producer._producer.send(builder.build())
        finally:
            native.close()

    await asyncio.to_thread(send)


# Batches, chunks, partitions


@pytest.mark.parametrize("act", [nack, reconsume])
async def test_a_batch_of_five_with_one_acked(
    stock: encore.Client, broker: BrokerThread, topic: str, act: Act
) -> None:
    await publish(
        stock,
        topic,
        *(b"%d" % each for each in range(5)),
        batching_enabled=True,
        batching_max_publish_delay_ms=50,
    )

    async def but_one(consumer: encore.Consumer, message: encore.Message) -> None:
        if message.data() == b"3":
            await consumer.acknowledge(message)
        else:
            await act(consumer, message)

    async with await open_consumer(stock, topic, most=2) as consumer:
        seen = await look(consumer, but_one, quiet_s=0.7)
    assert seen == Counter({b"0": 3, b"1": 3, b"2": 3, b"3": 1, b"4": 3})
    dead = await await_letters(stock, f"{topic}-s-DLQ", 4)
    assert sorted(bodies(dead)) == [b"0", b"1", b"2", b"4"]
    origins = {letter.properties()[letters.ORIGIN_MESSAGE_ID] for letter in dead}
    assert {origin.rpartition(":")[2] for origin in origins} == {"0", "1", "2", "4"}
    await settled(broker, topic)


async def test_a_chunked_message(stock: encore.Client, broker: BrokerThread, topic: str) -> None:
    """One dead letter, chunked again, and no chunk left unacked (Java: all but the last)."""
    large = bytes(range(256)) * 30_000  # two chunks of 5 MiB
    await publish(stock, topic, large, chunking_enabled=True)
    async with await open_consumer(stock, topic, most=1) as consumer:
        seen = await look(consumer, nack, quiet_s=1)
        assert sum(seen.values()) == 2
        (dead,) = await await_letters(stock, f"{topic}-s-DLQ", 1)
    assert dead.data() == large
    assert ";" in dead.properties()[letters.ORIGIN_MESSAGE_ID]
    await settled(broker, topic)


@pytest.mark.parametrize("act", [nack, reconsume])
async def test_partitions(stock: encore.Client, broker: BrokerThread, topic: str, act: Act) -> None:
    await asyncio.to_thread(broker.create_partitioned_topic, topic, 3)
    await publish(stock, topic, *(b"%d" % each for each in range(9)))
    async with await open_consumer(stock, topic, most=1) as consumer:
        seen = await look(consumer, act, quiet_s=0.7)
    assert seen == Counter({b"%d" % each: 2 for each in range(9)})
    dead = await await_letters(stock, f"{topic}-s-DLQ", 9)
    assert len(set(bodies(dead))) == 9
    real = set(named(dead, letters.REAL_TOPIC))
    parts = {f"{topic}-partition-{each}" for each in range(3)}
    assert real == ({topic} if act is reconsume else parts)
    for part in parts:
        await settled(broker, part)


# What the broker forgets


async def test_attempts_survive_an_unload(
    stock: encore.Client, broker: BrokerThread, topic: str
) -> None:
    await publish(stock, topic, b"poison")
    looks = 0
    async with await open_consumer(stock, topic, most=2) as consumer:
        for _ in range(3):
            message = await consumer.receive(timeout=5)
            assert message.redelivery_count() == looks
            looks += 1
            await consumer.negative_acknowledge(message)
            await asyncio.to_thread(broker.unload, topic)
        (dead,) = await await_letters(stock, f"{topic}-s-DLQ", 1)
        assert dead.properties()[letters.ATTEMPTS] == "3"
        with pytest.raises(encore.ReceiveTimeout):
            await consumer.receive(timeout=0.5)


# On the wire


async def test_the_commands_of_one_letter(
    stock: encore.Client, broker: BrokerThread, topic: str
) -> None:
    await publish(stock, topic, b"a")
    async with await open_consumer(
        stock,
        topic,
        most=1,
        consumer_name="me",
        consumer_type=encore.ConsumerType.Exclusive,
        dead_letter_policy=encore.DeadLetterPolicy(1, initial_subscription_name="keeper"),
    ) as consumer:
        subscribed = {
            command.command.subscribe.topic: command.command.subscribe
            for command in broker.recorded("SUBSCRIBE", "in")
        }
        retry = subscribed[f"{topic}-s-RETRY"]
        assert (retry.subType, retry.subscription, retry.consumer_name) == (1, "s", "me")
        await asyncio.to_thread(broker.forget_commands)
        await consumer.reconsume_later(await consumer.receive(timeout=5))
        await settled(broker, topic)
        order = [
            command.type
            for command in broker.commands
            if command.type in ("SEND", "SEND_RECEIPT", "ACK")
        ]
        assert order == ["SEND", "SEND_RECEIPT", "ACK"]
        await consumer.reconsume_later(await consumer.receive(timeout=5))
    by_topic = {
        command.command.producer.topic: command.command.producer
        for command in broker.recorded("PRODUCER", "in")
    }
    assert not by_topic[f"{topic}-s-RETRY"].producer_name
    name = by_topic[f"{topic}-s-DLQ"].producer_name
    assert name.startswith(f"{topic}-s-RETRY-s-me-")
    assert name.endswith("-DLQ")
    assert await asyncio.to_thread(broker.backlog, f"{topic}-s-DLQ", "keeper") == 1


@pytest.mark.parametrize("delay", [0.5, 1.5])
async def test_short_delays_are_kept(stock: encore.Client, topic: str, delay: float) -> None:
    """The broker's tick is 1 s: it delivers the first at once, the second up to a tick early."""
    await publish(stock, topic, *(b"%d" % each for each in range(5)))
    loop = asyncio.get_running_loop()
    async with await open_consumer(stock, topic) as consumer:
        messages = [await consumer.receive(timeout=5) for _ in range(5)]
        began = loop.time()
        await consumer.reconsume_later(messages, delay)
        sent = loop.time()
        for _ in range(5):
            await consumer.receive(timeout=5)
            # Never early by the call's own clock; late by less than the broker's tick.
            assert loop.time() - began >= delay
            assert loop.time() - sent < delay + 1.3


# Failures


async def until_buried(client: encore.Client, broker: BrokerThread, topic: str, count: int) -> int:
    """Nack `count` messages until they are dead letters; the PRODUCER commands it took."""
    async with await open_consumer(client, topic, most=1) as consumer:
        seen = await look(consumer, nack, quiet_s=0.5)
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
async def test_a_producer_that_is_refused_is_made_again(
    stock: encore.Client, broker: BrokerThread, topic: str, error: str
) -> None:
    await publish(stock, topic, b"a", b"b", b"c")
    fault = Fault(kind="refuse", command="PRODUCER", topic=f"{topic}-s-DLQ", times=3, error=error)
    broker.faults = FaultPlan([fault])
    tried = await until_buried(stock, broker, topic, 3)
    assert tried == 4


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_terminated_dead_letter_topic(
    stock: encore.Client, broker: BrokerThread, topic: str, when: str
) -> None:
    """Java, terminated later: a hot loop of about 150 redeliveries a second and message."""
    dead_topic = f"{topic}-s-DLQ"
    await publish(stock, topic, b"first")
    async with await open_consumer(stock, topic, most=1) as consumer:
        if when == "after":
            await look(consumer, nack, quiet_s=0.4)
        else:
            await asyncio.to_thread(broker.create_topic, dead_topic)
        await asyncio.to_thread(broker.terminate, dead_topic)
        await publish(stock, topic, b"a", b"b")
        await asyncio.to_thread(broker.forget_commands)
        await look(consumer, nack, quiet_s=2)
        again = broker.recorded("REDELIVER_UNACKNOWLEDGED_MESSAGES", "in")
        assert 2 <= len(again) < 40
        assert await asyncio.to_thread(broker.backlog, topic, "s") == (2 if when == "after" else 3)
    # They come back to whoever reads next.
    async with await open_consumer(stock, topic, most=1) as consumer:
        assert (await consumer.receive(timeout=5)).data() in (b"first", b"a", b"b")


@pytest.mark.parametrize("kind", ["close_before", "close_after", "delay"])
async def test_a_connection_lost_in_the_middle(
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
        # The engine repeats what it has no receipt for; the broker has no deduplication on.
        assert len(copies) <= 20 + 11
        await settled(broker, topic)
        with pytest.raises(encore.ReceiveTimeout):
            await consumer.receive(timeout=0.3)


async def test_an_outage_while_letters_are_under_way(
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
        while True:  # what failed comes back
            try:
                await consumer.reconsume_later(await consumer.receive(timeout=1), 60)
            except encore.ReceiveTimeout:
                break
        copies = bodies(await await_letters(stock, f"{topic}-s-RETRY", 200))
        assert set(copies) == {b"%d" % each for each in range(200)}
        await settled(broker, topic)


async def test_close_with_letters_under_way(
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
