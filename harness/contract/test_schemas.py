"""Schemas: registered, fetched, and values that one transport wrote and another reads."""

from __future__ import annotations

import struct
from base64 import b64decode
from collections.abc import Callable
from typing import Any

import _pulsar
import pytest
from google.protobuf.wrappers_pb2 import StringValue

import pulsar_encore as encore
from pulsar_encore.schema import (
    AvroSchema,
    BytesSchema,
    Integer,
    JsonSchema,
    ProtobufNativeSchema,
    Record,
    String,
    StringSchema,
)
from pulsar_encore.wire import pb

from .cluster import ENGINES, Cluster, Engine
from .contract_kit import data, publish, subscribe, take

_U32 = struct.Struct(">I")


class Order(Record):  # type: ignore[misc]
    name = String()
    count = Integer()


class Plain:
    """A schema of one's own, as stock's classes are made: a type, and what is said of it."""

    def __init__(
        self,
        kind: Any,
        said: str,
        encode: Callable[[Any], bytes],
        decode: Callable[[bytes], Any],
    ) -> None:
        self._info = _pulsar.SchemaInfo(kind, kind.name, said)
        self.encode = encode
        self.decode = decode

    def schema_info(self) -> Any:
        return self._info

    def decode_message(self, message: Any) -> Any:
        return self.decode(message.data())


def _number(kind: str, form: str) -> Plain:
    packed = struct.Struct(form)
    return Plain(
        getattr(_pulsar.SchemaType, kind), "", packed.pack, lambda data: packed.unpack(data)[0]
    )


SCHEMAS: dict[str, tuple[Callable[[], Any], Any]] = {
    "bytes": (BytesSchema, b"\xff\x00"),
    "string": (StringSchema, "tëxt"),
    "json": (lambda: JsonSchema(Order), Order(name="a", count=7)),
    "avro": (lambda: AvroSchema(Order), Order(name="a", count=7)),
    "protobuf": (lambda: ProtobufNativeSchema(StringValue), StringValue(value="a")),
    "int8": (lambda: _number("INT8", ">b"), -3),
    "int32": (lambda: _number("INT32", ">i"), -3),
    "int64": (lambda: _number("INT64", ">q"), 1 << 40),
    "double": (lambda: _number("DOUBLE", ">d"), 0.5),
}
NUMBERS = ("int8", "int32", "int64", "double")


def _sized(data: bytes) -> bytes:
    return _U32.pack(len(data)) + data


class Pairs:
    """Pairs of bytes: both in the payload, or the key as the partition key."""

    def __init__(self, *, apart: bool = False) -> None:
        self._apart = apart
        self._info = pb.Schema(
            name="KeyValue",
            type=pb.Schema.KeyValue,
            schema_data=_sized(b"") + _sized(b""),  # what is said of each of them
        )
        form = "SEPARATED" if apart else "INLINE"
        for key, value in (("kv.encoding.type", form), ("key.schema.type", "BYTES")):
            self._info.properties.add(key=key, value=value)

    def schema_info(self) -> pb.Schema:
        return self._info

    def encode(self, pair: tuple[bytes, bytes]) -> bytes:
        return pair[1] if self._apart else _sized(pair[0]) + _sized(pair[1])

    def decode_message(self, message: Any) -> tuple[bytes, bytes]:
        data = message.data()
        if self._apart:
            return b64decode(message.partition_key()), data
        (size,) = _U32.unpack_from(data)
        return data[4 : 4 + size], data[8 + size :]


@pytest.fixture(params=ENGINES, ids=lambda engine: f"by {engine.name}")
def writer(request: pytest.FixtureRequest) -> Engine:
    """The transport that publishes; `engine` reads."""
    made: Engine = request.param
    return made


@pytest.mark.parametrize("name", SCHEMAS)
async def test_a_value_is_what_was_written(
    cluster: Cluster, engine: Engine, writer: Engine, topic: str, name: str
) -> None:
    make, value = SCHEMAS[name]
    async with engine.client(cluster.url) as reading, writer.client(cluster.url) as writing:
        # First: a topic that has messages without a schema gets none.
        consumer = await subscribe(reading, topic, schema=make())
        await publish(writing, topic, [value, value], schema=make())
        await publish(writing, topic, [value, value], schema=make(), batch=2)
        got = await take(consumer, 4)
        assert [message.value() for message in got] == [value] * 4
        without = name == "bytes" or (name in NUMBERS and not writer.all_schemas)
        assert {message.int_schema_version() for message in got} == {-1 if without else 0}
        start = encore.MessageId.earliest
        async with await reading.create_reader(topic, start, schema=make()) as reader:
            read = [await reader.read_next(timeout_millis=5000) for _ in range(4)]
        assert [message.value() for message in read] == [value] * 4


@pytest.mark.parametrize("apart", [False, True])
async def test_pairs_are_what_was_written(
    cluster: Cluster, engine: Engine, writer: Engine, topic: str, apart: bool
) -> None:
    if not writer.all_schemas:
        return
    key, value = b"\x00key\xff", b"value\xff"
    schema = Pairs(apart=apart)
    async with engine.client(cluster.url) as reading, writer.client(cluster.url) as writing:
        async with await writing.create_producer(topic, schema=schema) as producer:
            await producer.send((key, value), partition_key=key if apart else None)
        consumer = await subscribe(reading, topic, schema=schema if engine.all_schemas else None)
        [message] = await take(consumer, 1)
        assert schema.decode_message(message) == (key, value)
        assert message.int_schema_version() == 0
        if engine.capabilities.binary_keys:
            assert message.value() == (key, value)
            assert message.partition_key_bytes() == (key if apart else None)


@pytest.mark.parametrize("name", ["json", "avro", "int32"])
async def test_a_copy_has_the_version_of_its_original(
    cluster: Cluster, engine: Engine, topic: str, name: str
) -> None:
    make, value = SCHEMAS[name]
    if name in NUMBERS and not engine.all_schemas:
        return
    transport = engine.transport(cluster.url)
    async with encore.Client(cluster.url, transport=transport) as client:
        await publish(client, topic, [value], schema=make())
        known = await transport.schema_of(topic, 0)
        assert known.key_value is False
        await _copied(client, topic, make().encode(value), known)
        got = await take(await subscribe(client, f"{topic}-copies", schema=make()), 1)
        assert got[0].value() == value


async def test_a_copy_of_a_pair_has_the_version_of_its_original(
    cluster: Cluster, engine: Engine, topic: str
) -> None:
    if not engine.all_schemas:
        return
    transport = engine.transport(cluster.url)
    async with encore.Client(cluster.url, transport=transport) as client:
        await publish(client, topic, [(b"a", b"b")], schema=Pairs())
        known = await transport.schema_of(topic, 0)
        assert known.key_value is True
        assert known.schema_info().properties == Pairs().schema_info().properties
        await _copied(client, topic, Pairs().encode((b"a", b"b")), known)


async def _copied(client: encore.Client, topic: str, payload: bytes, known: Any) -> None:
    """The same bytes and version, also where there was no schema before."""
    for where, count in ((topic, 2), (f"{topic}-copies", 1)):
        await publish(client, where, [payload], schema=known)
        async with await subscribe(client, where) as consumer:
            got = await take(consumer, count)
            await consumer.unsubscribe()
        assert data(got) == [payload] * count
        assert [each.int_schema_version() for each in got] == [0] * count


def _box(*fields: str) -> Any:
    said = [{"name": field, "type": "int"} for field in fields]
    return AvroSchema(None, {"type": "record", "name": "Box", "fields": said})


@pytest.mark.parametrize("batch", [0, 2])
async def test_each_value_is_decoded_with_the_version_it_was_written_with(
    cluster: Cluster, engine: Engine, writer: Engine, topic: str, batch: int
) -> None:
    """Fields in another order decode with any of the schemas, to values that are exchanged."""
    value = {"width": 1, "height": 2}
    async with engine.client(cluster.url) as reading, writer.client(cluster.url) as writing:
        for fields in (("width", "height"), ("height", "width"), ("width", "height")):
            await publish(writing, topic, [value, value], schema=_box(*fields), batch=batch)
        got = await take(await subscribe(reading, topic, schema=_box("height", "width")), 6)
        assert [message.value() for message in got] == [value] * 6
        assert [message.int_schema_version() for message in got] == [0, 0, 1, 1, 0, 0]


async def test_a_schema_of_another_type_is_refused_by_name(
    client: encore.Client, topic: str
) -> None:
    await publish(client, topic, [Order(name="a", count=7)], schema=JsonSchema(Order))
    with pytest.raises(encore.TransportError, match="schema=") as caught:
        await client.create_producer(topic, schema=StringSchema())
    assert caught.value.result == "IncompatibleSchema"


async def test_a_version_that_is_not_there_is_an_error_by_name(
    engine: Engine, cluster: Cluster, topic: str
) -> None:
    async with engine.client(cluster.url) as client:
        await publish(client, topic, [b"x"])
    transport = engine.transport(cluster.url, operation_timeout_seconds=1)
    with pytest.raises(encore.TransportError, match="schema version 3"):
        await transport.schema_of(topic, 3)
    await transport.close()
