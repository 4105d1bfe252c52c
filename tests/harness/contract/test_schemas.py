"""Schemas: registered, fetched, and values that one transport writes and another reads."""

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


class CustomSchema:
    """A custom schema, as the stock classes are built: a type and its definition."""

    def __init__(
        self,
        kind: Any,
        definition: str,
        encode: Callable[[Any], bytes],
        decode: Callable[[bytes], Any],
    ) -> None:
        self._info = _pulsar.SchemaInfo(kind, kind.name, definition)
        self.encode = encode
        self.decode = decode

    def schema_info(self) -> Any:
        return self._info

    def decode_message(self, message: Any) -> Any:
        return self.decode(message.data())


def _number(kind: str, form: str) -> CustomSchema:
    packed = struct.Struct(form)
    return CustomSchema(
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


class PairSchema:
    """A schema for pairs of bytes: both in the payload, or the key as the partition key."""

    def __init__(self, *, separated: bool = False) -> None:
        self._separated = separated
        self._info = pb.Schema(
            name="KeyValue",
            type=pb.Schema.KeyValue,
            schema_data=_sized(b"") + _sized(b""),  # the definitions of both
        )
        form = "SEPARATED" if separated else "INLINE"
        for key, value in (("kv.encoding.type", form), ("key.schema.type", "BYTES")):
            self._info.properties.add(key=key, value=value)

    def schema_info(self) -> pb.Schema:
        return self._info

    def encode(self, pair: tuple[bytes, bytes]) -> bytes:
        return pair[1] if self._separated else _sized(pair[0]) + _sized(pair[1])

    def decode_message(self, message: Any) -> tuple[bytes, bytes]:
        data = message.data()
        if self._separated:
            return b64decode(message.partition_key()), data
        (size,) = _U32.unpack_from(data)
        return data[4 : 4 + size], data[8 + size :]


@pytest.fixture(params=ENGINES, ids=lambda engine: f"by {engine.name}")
def writer(request: pytest.FixtureRequest) -> Engine:
    """The transport that publishes; `engine` reads."""
    made: Engine = request.param
    return made


@pytest.mark.parametrize("name", SCHEMAS)
async def test_a_value_is_read_as_written(
    cluster: Cluster, engine: Engine, writer: Engine, topic: str, name: str
) -> None:
    make, value = SCHEMAS[name]
    async with engine.client(cluster.url) as reading, writer.client(cluster.url) as writing:
        # Subscribe first, because a topic with messages without a schema gets none.
        consumer = await subscribe(reading, topic, schema=make())
        await publish(writing, topic, [value, value], schema=make())
        await publish(writing, topic, [value, value], schema=make(), batch=2)
        got = await take(consumer, 4)
        assert [message.value() for message in got] == [value] * 4
        is_unregistered = name == "bytes" or (name in NUMBERS and not writer.all_schemas)
        assert {message.int_schema_version() for message in got} == {-1 if is_unregistered else 0}
        start = encore.MessageId.earliest
        async with await reading.create_reader(topic, start, schema=make()) as reader:
            read = [await reader.read_next(timeout_millis=5000) for _ in range(4)]
        assert [message.value() for message in read] == [value] * 4


@pytest.mark.parametrize("separated", [False, True])
async def test_key_value_pairs_are_read_as_written(
    cluster: Cluster, engine: Engine, writer: Engine, topic: str, separated: bool
) -> None:
    if not writer.all_schemas:
        return
    key, value = b"\x00key\xff", b"value\xff"
    schema = PairSchema(separated=separated)
    async with engine.client(cluster.url) as reading, writer.client(cluster.url) as writing:
        async with await writing.create_producer(topic, schema=schema) as producer:
            await producer.send((key, value), partition_key=key if separated else None)
        consumer = await subscribe(reading, topic, schema=schema if engine.all_schemas else None)
        [message] = await take(consumer, 1)
        assert schema.decode_message(message) == (key, value)
        assert message.int_schema_version() == 0
        if engine.capabilities.binary_keys:
            assert message.value() == (key, value)
            assert message.partition_key_bytes() == (key if separated else None)


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
        await _check_copies(client, topic, make().encode(value), known)
        got = await take(await subscribe(client, f"{topic}-copies", schema=make()), 1)
        assert got[0].value() == value


async def test_a_copy_of_a_pair_has_the_version_of_its_original(
    cluster: Cluster, engine: Engine, topic: str
) -> None:
    if not engine.all_schemas:
        return
    transport = engine.transport(cluster.url)
    async with encore.Client(cluster.url, transport=transport) as client:
        await publish(client, topic, [(b"a", b"b")], schema=PairSchema())
        known = await transport.schema_of(topic, 0)
        assert known.key_value is True
        assert known.schema_info().properties == PairSchema().schema_info().properties
        await _check_copies(client, topic, PairSchema().encode((b"a", b"b")), known)


async def _check_copies(client: encore.Client, topic: str, payload: bytes, known: Any) -> None:
    """Publish the same bytes with the same version, also to a topic without a schema."""
    for where, count in ((topic, 2), (f"{topic}-copies", 1)):
        await publish(client, where, [payload], schema=known)
        async with await subscribe(client, where) as consumer:
            got = await take(consumer, count)
            await consumer.unsubscribe()
        assert data(got) == [payload] * count
        assert [each.int_schema_version() for each in got] == [0] * count


def _box(*fields: str) -> Any:
    definition = [{"name": field, "type": "int"} for field in fields]
    return AvroSchema(None, {"type": "record", "name": "Box", "fields": definition})


@pytest.mark.parametrize("batch", [0, 2])
async def test_each_value_is_decoded_with_its_own_schema_version(
    cluster: Cluster, engine: Engine, writer: Engine, topic: str, batch: int
) -> None:
    """Fields in another order decode with either schema, but with exchanged values."""
    value = {"width": 1, "height": 2}
    async with engine.client(cluster.url) as reading, writer.client(cluster.url) as writing:
        for fields in (("width", "height"), ("height", "width"), ("width", "height")):
            await publish(writing, topic, [value, value], schema=_box(*fields), batch=batch)
        got = await take(await subscribe(reading, topic, schema=_box("height", "width")), 6)
        assert [message.value() for message in got] == [value] * 6
        assert [message.int_schema_version() for message in got] == [0, 0, 1, 1, 0, 0]


async def test_a_schema_of_another_type_is_refused(client: encore.Client, topic: str) -> None:
    await publish(client, topic, [Order(name="a", count=7)], schema=JsonSchema(Order))
    with pytest.raises(encore.TransportError, match="schema=") as caught:
        await client.create_producer(topic, schema=StringSchema())
    assert caught.value.result == "IncompatibleSchema"


async def test_a_missing_schema_version_raises_an_error(
    engine: Engine, cluster: Cluster, topic: str
) -> None:
    async with engine.client(cluster.url) as client:
        await publish(client, topic, [b"x"])
    transport = engine.transport(cluster.url, operation_timeout_seconds=1)
    with pytest.raises(encore.TransportError, match="schema version 3"):
        await transport.schema_of(topic, 3)
    await transport.close()
