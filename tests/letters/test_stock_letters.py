"""Letters on the wire: the stock engine and the development broker, where memory proves nothing."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from forwarding_kit import (
    Act,
    await_letters,
    bodies,
    handle_all,
    nack,
    named,
    open_consumer,
    publish,
    read_out,
    reconsume,
    settled,
)
from pulsar.schema import Integer, JsonSchema, Record

import pulsar_encore as encore
from pulsar_encore import letters
from pulsar_encore.devbroker import BrokerThread


class Order(Record):  # type: ignore[misc]
    number = Integer()


# Copies


@pytest.mark.parametrize("act", [nack, reconsume])
async def test_letters_copy_payload_keys_event_time_and_null_value(
    stock: encore.Client, broker: BrokerThread, topic: str, act: Act
) -> None:
    await publish(
        stock, topic, b"\x00\xff", partition_key="k", ordering_key="o", event_timestamp=1234
    )
    await publish(stock, topic, b"plain")
    await publish(stock, topic, None, partition_key="gone")
    async with await open_consumer(stock, topic, most=1) as consumer:
        seen = await handle_all(consumer, act, quiet_s=0.7)
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


async def test_letters_and_their_producers_have_the_schema(
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


async def test_a_message_with_a_binary_ordering_key_is_not_forwarded_and_stays(
    stock: encore.Client, topic: str
) -> None:
    """The engine cannot read it; a letter without it, or with another, would be a lie."""
    await publish_binary(stock, topic)
    async with await open_consumer(stock, topic, most=1) as consumer:
        message = await consumer.receive(timeout=5)
        for read in (message.ordering_key, message.ordering_key_bytes):
            with pytest.raises(encore.UnreadableError, match="an ordering key of raw bytes"):
                read()
        with pytest.raises(encore.UnreadableError, match="raw bytes"):
            await consumer.reconsume_later(message)
        await consumer.negative_acknowledge(message)
        again = await consumer.receive(timeout=5)
        await consumer.negative_acknowledge(again)  # its dead letter cannot be sent either
        await asyncio.sleep(0.8)
        assert await read_out(stock, f"{topic}-s-RETRY") == []
        async with asyncio.timeout(5):
            while consumer.statistics().unacked != 1:  # 0 while a redelivery is under way
                await asyncio.sleep(0.01)
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
async def test_the_unacked_messages_of_a_batch_are_dead_lettered_one_by_one(
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
        seen = await handle_all(consumer, but_one, quiet_s=0.7)
    assert seen == Counter({b"0": 3, b"1": 3, b"2": 3, b"3": 1, b"4": 3})
    dead = await await_letters(stock, f"{topic}-s-DLQ", 4)
    assert sorted(bodies(dead)) == [b"0", b"1", b"2", b"4"]
    origins = {letter.properties()[letters.ORIGIN_MESSAGE_ID] for letter in dead}
    assert {origin.rpartition(":")[2] for origin in origins} == {"0", "1", "2", "4"}
    await settled(broker, topic)


async def test_a_chunked_message_becomes_one_chunked_dead_letter(
    stock: encore.Client, broker: BrokerThread, topic: str
) -> None:
    """One dead letter, chunked again, and no chunk left unacked (Java: all but the last)."""
    large = bytes(range(256)) * 30_000  # two chunks of 5 MiB
    await publish(stock, topic, large, chunking_enabled=True)
    async with await open_consumer(stock, topic, most=1) as consumer:
        seen = await handle_all(consumer, nack, quiet_s=1)
        assert sum(seen.values()) == 2
        (dead,) = await await_letters(stock, f"{topic}-s-DLQ", 1)
    assert dead.data() == large
    assert ";" in dead.properties()[letters.ORIGIN_MESSAGE_ID]
    await settled(broker, topic)


@pytest.mark.parametrize("act", [nack, reconsume])
async def test_letters_of_partitions_name_the_partition_after_a_nack_and_else_the_topic(
    stock: encore.Client, broker: BrokerThread, topic: str, act: Act
) -> None:
    await asyncio.to_thread(broker.create_partitioned_topic, topic, 3)
    await publish(stock, topic, *(b"%d" % each for each in range(9)))
    async with await open_consumer(stock, topic, most=1) as consumer:
        seen = await handle_all(consumer, act, quiet_s=0.7)
    assert seen == Counter({b"%d" % each: 2 for each in range(9)})
    dead = await await_letters(stock, f"{topic}-s-DLQ", 9)
    assert len(set(bodies(dead))) == 9
    real = set(named(dead, letters.REAL_TOPIC))
    parts = {f"{topic}-partition-{each}" for each in range(3)}
    assert real == ({topic} if act is reconsume else parts)
    for part in parts:
        await settled(broker, part)


# State that the broker forgets


async def test_attempts_survive_unloads_of_the_topic(
    stock: encore.Client, broker: BrokerThread, topic: str
) -> None:
    await publish(stock, topic, b"poison")
    deliveries = 0
    async with await open_consumer(stock, topic, most=2) as consumer:
        for _ in range(3):
            message = await consumer.receive(timeout=5)
            assert message.redelivery_count() == deliveries
            deliveries += 1
            await consumer.negative_acknowledge(message)
            await asyncio.to_thread(broker.unload, topic)
        (dead,) = await await_letters(stock, f"{topic}-s-DLQ", 1)
        assert dead.properties()[letters.ATTEMPTS] == "3"
        with pytest.raises(encore.ReceiveTimeout):
            await consumer.receive(timeout=0.5)


# On the wire


async def test_a_letter_is_stored_before_its_original_is_acked(
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
async def test_a_retry_letter_is_not_early_for_delays_near_the_broker_tick(
    stock: encore.Client, topic: str, delay: float
) -> None:
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
            # Never early by the call's own clock; late by less than the broker's tick plus the
            # delay of a busy machine.
            assert loop.time() - began >= delay
            assert loop.time() - sent < delay + 5
