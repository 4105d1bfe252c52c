"""Letters keep how their originals were written: schema version, encryption, keys.

On the stock engine and the development broker.
"""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest
from forwarding_kit import (
    QUIET,
    Act,
    await_letters,
    handle_all,
    nack,
    open_consumer,
    publish,
    read_out,
    reconsume,
    settled,
)
from pulsar import CryptoKeyReader
from pulsar.schema import AvroSchema, StringSchema

import pulsar_encore as encore
from pulsar_encore.deadletters import DeadLetters
from pulsar_encore.devbroker import BrokerThread, Fault, FaultPlan


def avro(*names: str) -> Any:
    fields = [{"name": name, "type": "int"} for name in names]
    return AvroSchema(None, {"type": "record", "name": "Box", "fields": fields})


OLD = ("width", "height")
NEW = ("height", "width")
BOX = {"width": 1, "height": 2}


async def publish_as(client: encore.Client, topic: str, value: Any, schema: Any) -> None:
    async with await client.create_producer(topic, schema=schema) as producer:
        await producer.send(value)


# Schemas


@pytest.mark.parametrize("act", [nack, reconsume])
@pytest.mark.parametrize("reader", [OLD, NEW])
async def test_letters_keep_the_schema_version_of_their_original(
    stock: encore.Client, broker: BrokerThread, topic: str, act: Act, reader: tuple[str, ...]
) -> None:
    """With the consumer's own on it the old bytes read as width 2, height 1."""
    await publish_as(stock, topic, BOX, avro(*OLD))
    await publish_as(stock, topic, BOX, avro(*NEW))
    values = []

    async def and_keep(consumer: encore.Consumer, message: encore.Message) -> None:
        values.append(await asyncio.to_thread(message.value))
        await act(consumer, message)

    async with await open_consumer(stock, topic, most=1, schema=avro(*reader)) as consumer:
        await handle_all(consumer, and_keep, quiet_s=0.7)
    assert values == [BOX] * 4
    await settled(broker, topic)
    found = await await_letters(stock, f"{topic}-s-DLQ", 2)
    assert sorted(letter.data() for letter in found) == [b"\x02\x04", b"\x04\x02"]
    for schema in (avro(*OLD), avro(*NEW)):
        letters_ = await read_out(stock, f"{topic}-s-DLQ", schema)
        assert [await asyncio.to_thread(each.value) for each in letters_] == [BOX, BOX]
    home = f"{topic}-again"
    assert (await DeadLetters(stock, f"{topic}-s-DLQ").replay(target=home)).replayed == 2
    replayed = await read_out(stock, home, avro(*NEW))
    assert [await asyncio.to_thread(each.value) for each in replayed] == [BOX, BOX]


@pytest.mark.parametrize("act", [nack, reconsume])
async def test_a_message_stays_if_the_letter_topic_refuses_its_schema(
    stock: encore.Client, broker: BrokerThread, topic: str, act: Act
) -> None:
    await publish_as(stock, topic, BOX, avro(*OLD))
    await publish_as(stock, f"{topic}-s-DLQ", "text", StringSchema())
    async with await open_consumer(stock, topic, most=1) as consumer:
        await act(consumer, await consumer.receive(timeout=5))
        last = await consumer.receive(timeout=5)
        if act is reconsume:
            with pytest.raises(encore.TransportError) as caught:
                await consumer.reconsume_later(last)
            assert caught.value.result == "IncompatibleSchema"
        else:
            await consumer.negative_acknowledge(last)
        await asyncio.sleep(0.7)
    backlogs = [
        await asyncio.to_thread(broker.backlog, where, "s") for where in (topic, f"{topic}-s-RETRY")
    ]
    assert sum(backlogs) == 1


@pytest.mark.parametrize("act", [nack, reconsume])
async def test_a_letter_of_a_message_without_a_schema_has_no_schema(
    stock: encore.Client, topic: str, act: Act
) -> None:
    await publish(stock, topic, b"\x02\x04")
    async with await open_consumer(stock, topic, most=1, schema=avro(*OLD)) as consumer:
        await handle_all(consumer, act, quiet_s=0.7)
    (letter,) = await await_letters(stock, f"{topic}-s-DLQ", 1)
    assert (letter.data(), letter.int_schema_version()) == (b"\x02\x04", -1)


@pytest.mark.parametrize("act", [nack, reconsume])
async def test_a_letter_of_a_text_message_has_the_string_schema(
    stock: encore.Client, topic: str, act: Act
) -> None:
    await publish_as(stock, topic, "tëxt", StringSchema())
    async with await open_consumer(stock, topic, most=1, schema=StringSchema()) as consumer:
        await handle_all(consumer, act, quiet_s=0.7)
    (letter,) = await read_out(stock, f"{topic}-s-DLQ", StringSchema())
    assert (letter.value(), letter.int_schema_version()) == ("tëxt", 0)


# Encryption


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one pair of keys, which serves for every key name."""
    folder = tmp_path_factory.mktemp("keys")
    private, public = str(folder / "private.pem"), str(folder / "public.pem")
    for command in (
        ["openssl", "genrsa", "-out", private, "2048"],
        ["openssl", "rsa", "-in", private, "-pubout", "-out", public],
    ):
        subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def secret(keys: Path) -> CryptoKeyReader:
    return CryptoKeyReader(str(keys / "public.pem"), str(keys / "private.pem"))


CLOSED = encore.ConsumerCryptoFailureAction.CONSUME


async def undecrypted(client: encore.Client, topic: str) -> encore.Message:
    """Return a topic's first message as a reader without the key sees it."""
    async with await client.create_reader(
        topic, encore.MessageId.earliest, crypto_failure_action=CLOSED
    ) as reader:
        return await reader.read_next(timeout_millis=5000)


async def test_an_encrypted_message_has_an_encryption_context(
    stock: encore.Client, topic: str, secret: CryptoKeyReader
) -> None:
    """In the exported class, as stock's message does."""
    await publish(stock, topic, b"secret", encryption_key="its-key", crypto_key_reader=secret)
    async with await stock.create_reader(
        topic, encore.MessageId.earliest, crypto_key_reader=secret
    ) as reader:
        opened = await reader.read_next(timeout_millis=5000)
    async with await open_consumer(stock, topic, crypto_failure_action=CLOSED) as consumer:
        closed = await consumer.receive(timeout=5)
        for message, failed in ((opened, False), (closed, True)):
            context = message.encryption_context()
            assert isinstance(context, encore.EncryptionContext)
            (key,) = context.keys()
            assert isinstance(key, encore.EncryptionKey)
            assert key.key == "its-key" and len(key.value) == 256
            assert context.is_decryption_failed() is failed
            assert context.compression_type() == encore.CompressionType.NONE
            assert context.param() and context.batch_size() == -1
            assert "its-key" in str(context)
    await publish(stock, f"{topic}-plain", b"open")
    async with await stock.create_reader(f"{topic}-plain", encore.MessageId.earliest) as reader:
        plain = await reader.read_next(timeout_millis=5000)
    assert plain.encryption_context() is None


@pytest.mark.parametrize("act", [nack, reconsume])
async def test_letters_of_an_encrypted_topic_are_encrypted_with_the_same_key(
    stock: encore.Client, topic: str, secret: CryptoKeyReader, act: Act
) -> None:
    await publish(stock, topic, b"secret", encryption_key="its-key", crypto_key_reader=secret)
    async with await open_consumer(stock, topic, most=1, crypto_key_reader=secret) as consumer:
        assert await handle_all(consumer, act, quiet_s=0.7) == {b"secret": 2}
    where = [f"{topic}-s-DLQ"] + ([f"{topic}-s-RETRY"] if act is reconsume else [])
    for each in where:
        letter = await undecrypted(stock, each)
        assert b"secret" not in letter.data()
        context = letter.encryption_context()
        assert context is not None
        assert [key.key for key in context.keys()] == ["its-key"]
        async with await stock.create_reader(
            each, encore.MessageId.earliest, crypto_key_reader=secret
        ) as reader:
            assert (await reader.read_next(timeout_millis=5000)).data() == b"secret"
    dead = DeadLetters(stock, where[0], crypto_key_reader=secret)
    home = f"{topic}-again"
    assert (await dead.replay(target=home)).replayed == 1
    assert b"secret" not in (await undecrypted(stock, home)).data()


async def test_a_message_that_cannot_be_encrypted_again_is_not_forwarded_and_stays(
    stock: encore.Client, broker: BrokerThread, topic: str, keys: Path, secret: CryptoKeyReader
) -> None:
    """The consumer can decrypt, and has no public key: no letter, and none in clear text."""
    await publish(stock, topic, b"secret", encryption_key="its-key", crypto_key_reader=secret)
    reader = CryptoKeyReader(str(keys / "none.pem"), str(keys / "private.pem"))
    async with await open_consumer(stock, topic, most=1, crypto_key_reader=reader) as consumer:
        message = await consumer.receive(timeout=5)
        assert message.data() == b"secret"
        with pytest.raises(encore.TransportError) as caught:
            await consumer.reconsume_later(message)
        assert caught.value.result == "CryptoError"
        await nack(consumer, await consumer.receive(timeout=5))
        await asyncio.sleep(0.7)
    for each in (f"{topic}-s-RETRY", f"{topic}-s-DLQ"):
        assert await read_out(stock, each) == []
    assert await asyncio.to_thread(broker.backlog, topic, "s") == 1


async def test_a_message_that_was_not_decrypted_is_not_forwarded_and_stays(
    stock: encore.Client, broker: BrokerThread, topic: str, secret: CryptoKeyReader
) -> None:
    await publish(stock, topic, b"secret", encryption_key="its-key", crypto_key_reader=secret)
    async with await open_consumer(stock, topic, most=1, crypto_failure_action=CLOSED) as consumer:
        message = await consumer.receive(timeout=5)
        with pytest.raises(encore.NotSupportedError, match="not decrypted"):
            await consumer.reconsume_later(message)
        await consumer.negative_acknowledge(message)
        await consumer.negative_acknowledge(await consumer.receive(timeout=5))
        await asyncio.sleep(0.7)
    assert await read_out(stock, f"{topic}-s-DLQ") == []
    assert await asyncio.to_thread(broker.backlog, topic, "s") == 1


# Looking schemas up


async def test_a_slow_schema_lookup_does_not_block_the_loop(
    stock: encore.Client, broker: BrokerThread, topic: str
) -> None:
    await publish_as(stock, topic, BOX, avro(*OLD))
    await asyncio.to_thread(broker.forget_commands)
    broker.faults = FaultPlan([Fault(kind="delay", command="GET_SCHEMA", delay_ms=1000)])
    async with await open_consumer(stock, topic) as consumer:
        message = await consumer.receive(timeout=5)
        sending = asyncio.ensure_future(consumer.reconsume_later(message))
        iterations = 0
        while not sending.done():
            await asyncio.sleep(0.01)
            iterations += 1
        await sending
    assert len(broker.recorded("GET_SCHEMA", "in")) == 1
    assert iterations > 5, "of a second, in which a blocked loop would have had one or two"


async def test_a_failed_schema_lookup_raises_and_the_message_is_redelivered(
    broker: BrokerThread, topic: str
) -> None:
    """And the next try, when it can be had, is written with it."""
    async with encore.Client(
        broker.url, transport="stock", logger=QUIET, operation_timeout_seconds=1
    ) as client:
        await publish_as(client, topic, BOX, avro(*OLD))
        broker.faults = FaultPlan([Fault(kind="drop", command="GET_SCHEMA")])
        async with await open_consumer(client, topic) as consumer:
            with pytest.raises(encore.TransportError, match="schema version 0"):
                await consumer.reconsume_later(await consumer.receive(timeout=5))
            again = await consumer.receive(timeout=5)
            assert again.topic_name() == topic
            await consumer.reconsume_later(again)
            letter = await consumer.receive(timeout=5)
            assert letter.topic_name() == f"{topic}-s-RETRY"
            assert letter.int_schema_version() == 0
            await consumer.acknowledge(letter)
        broker.faults = None
    await settled(broker, topic)


async def test_letters_of_one_schema_version_need_one_lookup_and_one_producer(
    stock: encore.Client, broker: BrokerThread, topic: str
) -> None:
    async with await stock.create_producer(topic, schema=avro(*OLD)) as producer:
        await asyncio.gather(*(producer.send(BOX) for _ in range(50)))
    await asyncio.to_thread(broker.forget_commands)
    async with await open_consumer(stock, topic) as consumer:
        messages = [await consumer.receive(timeout=5) for _ in range(50)]
        await consumer.reconsume_later(messages)
    assert len(broker.recorded("GET_SCHEMA", "in")) == 1
    made = [each.command.producer.topic for each in broker.recorded("PRODUCER", "in")]
    assert made == [f"{topic}-s-RETRY"]


# Keys


@pytest.mark.parametrize("act", [nack, reconsume])
async def test_keys_that_read_as_bytes_are_refused_without_text_keys(
    stock: encore.Client, broker: BrokerThread, topic: str, act: Act
) -> None:
    await publish(stock, topic, b"a", partition_key="AAEC/w==")
    async with await open_consumer(stock, topic, most=1) as consumer:
        message = await consumer.receive(timeout=5)
        if act is reconsume:
            with pytest.raises(encore.NotSupportedError, match="text_keys"):
                await consumer.reconsume_later(message)
        else:
            await consumer.negative_acknowledge(message)
            await consumer.negative_acknowledge(await consumer.receive(timeout=5))
            await asyncio.sleep(0.7)
    assert await asyncio.to_thread(broker.backlog, topic, "s") == 1
    for where in (f"{topic}-s-RETRY", f"{topic}-s-DLQ"):
        assert await read_out(stock, where) == []
    policy = encore.DeadLetterPolicy(1, text_keys=True)
    async with await open_consumer(stock, topic, dead_letter_policy=policy) as consumer:
        await handle_all(consumer, act, quiet_s=0.7)
    (letter,) = await await_letters(stock, f"{topic}-s-DLQ", 1)
    assert letter.partition_key() == "AAEC/w=="
    report = await DeadLetters(stock, f"{topic}-s-DLQ").replay()
    assert (report.replayed, report.refused) == (0, 1)
    assert "text_keys" in report.refusals[0].reason
    letters_again = DeadLetters(stock, f"{topic}-s-DLQ", text_keys=True)
    assert (await letters_again.replay()).replayed == 1
