"""Null values on a real Pulsar, sent and read by the Java client and by both transports.

`Message.value` is compared with Java's `getValue` of the same message. Where Java fails to decode
an empty payload, the schema's own error is raised here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore.deadletters import DeadLetters
from pulsar_encore.schema import (
    AvroSchema,
    BytesSchema,
    Integer,
    JsonSchema,
    Record,
    StringSchema,
)
from tests.harness.pulsar_server import Server

from .letters.java_client import JavaClient, java_client, missing_tools
from .letters.letter_checks import await_letters, read_out, subscribe

asyncio.set_event_loop(None)

BOX = {"type": "record", "name": "Box", "fields": [{"name": "width", "type": ["null", "int"]}]}
TRANSPORTS = ("native", "stock")


class Box(Record):  # type: ignore[misc]
    width = Integer()


#: By Java's name of a schema: our schema, a value, and the result for an empty payload.
SCHEMAS: dict[str, tuple[Callable[[], Any], Any, Any]] = {
    "bytes": (BytesSchema, b"v", b""),
    "string": (StringSchema, "v", ""),
    "json": (lambda: JsonSchema(Box), Box(width=1), json.JSONDecodeError),
    "avro": (lambda: AvroSchema(None, BOX), {"width": 1}, EOFError),
}

each_transport = pytest.mark.parametrize("transport", TRANSPORTS)
batched_or_not = pytest.mark.parametrize("batch", [False, True])


@pytest.fixture(scope="module")
def java(pulsar: Server) -> Iterator[JavaClient]:
    missing_names = missing_tools()
    if missing_names is not None:
        pytest.fail(f"the comparison with Java needs {missing_names}")
    with java_client(pulsar.service_url) as client:
        yield client


async def call(java: JavaClient, *arguments: object) -> list[dict[str, Any]]:
    return await asyncio.to_thread(java.call, *arguments)


def read(message: encore.Message) -> Any:
    """Return the value, or the class of the error."""
    try:
        return message.value()
    except Exception as error:
        return type(error)


@each_transport
@batched_or_not
@pytest.mark.parametrize("name", SCHEMAS)
async def test_java_sends_null_and_we_read_none(
    pulsar: Server, java: JavaClient, topic: str, name: str, batch: bool, transport: str
) -> None:
    make, value, empty = SCHEMAS[name]
    await call(java, "send-values", topic, name, "batched" if batch else "single")
    async with encore.Client(pulsar.service_url, transport=transport) as client:
        async with await client.create_producer(topic, batching_enabled=batch) as producer:
            await producer.send(b"")
        for schema in (make(), None):
            options = {} if schema is None else {"schema": schema}
            got = await read_out(client, topic, **options)
            java_values = await call(
                java, "read-values", topic, "bytes" if schema is None else name
            )
            assert len(got) == len(java_values)
            for ours, java_value in zip(got, java_values, strict=True):
                is_null = java_value["value"] is None and java_value["failure"] is None
                assert (ours.value() is None) if is_null else (read(ours) is not None)
                assert ours.has_null_value() is is_null
                assert ours.data().decode() == (java_value["data"] or "")
            assert read(got[0]) == (got[0].data() if schema is None else value)
            assert read(got[-1]) == (b"" if schema is None else empty)
            assert isinstance(read(got[-1]), type) is (java_values[-1]["failure"] is not None)


@pytest.mark.parametrize("compression", ["NONE", "LZ4", "ZSTD"])
@each_transport
@batched_or_not
@pytest.mark.parametrize("name", SCHEMAS)
async def test_we_send_none_and_java_reads_null(
    pulsar: Server,
    java: JavaClient,
    topic: str,
    name: str,
    batch: bool,
    transport: str,
    compression: str,
) -> None:
    make, value, _ = SCHEMAS[name]
    producer_options: dict[str, Any] = {
        "schema": make(),
        "batching_enabled": batch,
        "batching_max_publish_delay_ms": 100,
        "compression_type": encore.CompressionType[compression],
    }
    async with encore.Client(pulsar.service_url, transport=transport) as client:
        async with await client.create_producer(topic, **producer_options) as producer:
            await asyncio.gather(*(producer.send(each) for each in (value, None, value)))
        java_values = await call(java, "read-values", topic, name)
        assert [each["failure"] for each in java_values] == [None] * 3
        assert [each["value"] is None for each in java_values] == [False, True, False]
        assert [each["data"] is None for each in java_values] == [False, True, False]
        for reading_transport in TRANSPORTS:
            async with encore.Client(pulsar.service_url, transport=reading_transport) as reader:
                got = await read_out(reader, topic, schema=make())
                assert [each.value() for each in got] == [value, None, value]


@each_transport
@batched_or_not
async def test_an_encrypted_null_value_is_read_as_none(
    pulsar: Server, topic: str, keys: Any, batch: bool, transport: str
) -> None:
    key_reader = encore.CryptoKeyReader(str(keys / "public.pem"), str(keys / "private.pem"))
    secret: dict[str, Any] = {"schema": StringSchema(), "crypto_key_reader": key_reader}
    producer_options: dict[str, Any] = {"encryption_key": "k", "batching_enabled": batch}
    async with encore.Client(pulsar.service_url, transport=transport) as client:
        async with await client.create_producer(topic, **producer_options, **secret) as producer:
            for each in ("v", None, ""):
                await producer.send(each)
        got = await read_out(client, topic, **secret)
        assert [each.value() for each in got] == ["v", None, ""]


@each_transport
@pytest.mark.parametrize("act", ["nack", "reconsume_later"])
async def test_letters_and_their_replay_keep_null_and_empty_apart(
    pulsar: Server, java: JavaClient, topic: str, act: str, transport: str
) -> None:
    await call(java, "send-values", topic, "string", "batched")  # "v", "", null
    async with encore.Client(pulsar.service_url, transport=transport) as client:
        async with await subscribe(client, topic, 1, schema=StringSchema()) as consumer:
            for _ in range(6):
                message = await consumer.receive(timeout=20)
                if act == "nack":
                    await consumer.negative_acknowledge(message)
                else:
                    await consumer.reconsume_later(message, delay=0.2)
            dead = f"{topic}-s-DLQ"
            found = await await_letters(client, dead, 3, schema=StringSchema())
            assert sorted(map(repr, (each.value() for each in found))) == ["''", "'v'", "None"]
        java_values = await call(java, "read-values", dead, "string")
        assert sorted(str(each["value"]) for each in java_values) == ["", "None", "v"]
        await DeadLetters(client, dead).replay()
        replayed = (await read_out(client, topic, schema=StringSchema()))[3:]
        assert sorted(map(repr, (each.value() for each in replayed))) == ["''", "'v'", "None"]


async def test_java_reads_both_halves_of_pairs_in_our_letters(
    pulsar: Server, java: JavaClient, topic: str
) -> None:
    """Our copy keeps a null half null and an empty half empty (native transport)."""
    await call(java, "send-values", topic, "separated", "batched")
    sent = [each["value"] for each in await call(java, "read-values", topic, "separated")]
    assert len(set(sent)) == 6  # two of them are a pair of nulls
    async with encore.Client(pulsar.service_url, transport="native") as client:
        got = await read_out(client, topic)
        assert [each.value() for each in got] == [b"v", None, None, b"v", None, b"", b"v"]
        assert [each.partition_key_bytes() for each in got][:4] == [b"k", None, b"k", None]
        async with await subscribe(client, topic, 1) as consumer:
            for _ in range(2 * len(sent)):
                message = await consumer.receive(timeout=20)
                await consumer.reconsume_later(message, delay=0.2)
            dead = f"{topic}-s-DLQ"
            await await_letters(client, dead, len(sent))
        java_values = await call(java, "read-values", dead, "separated")
        assert sorted(each["value"] for each in java_values) == sorted(sent)
