"""`AutoConsume` reads each message with the schema version that it was written with."""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

import pulsar_encore as encore
from pulsar_encore import Json, KeyValue
from pulsar_encore.schema import AvroSchema, ProtobufNativeSchema, StringSchema
from pulsar_encore.testing import MemoryTransport


@dataclass
class Order:
    id: int
    lines: list[dict[str, str]]


class Raw:
    """A codec of bytes with a schema type."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def encode(self, value: bytes) -> bytes:
        return value

    def decode(self, data: bytes) -> bytes:
        return data

    def schema_info(self) -> encore.SchemaInfo:
        return encore.SchemaInfo(self._kind)


@pytest.fixture
async def client() -> AsyncIterator[encore.Client]:
    async with encore.Client("pulsar://memory", transport=MemoryTransport()) as made:
        yield made


async def read(client: encore.Client, schema: Any, *values: Any) -> list[Any]:
    """Publish values, and return those that `AutoConsume` reads."""
    consumer = await client.subscribe("t", "s", schema=encore.AutoConsume())
    async with client.create_producer("t", schema=schema) as producer:
        for value in values:
            await producer.send(value)
    return [(await consumer.receive(timeout=5)).value() for _ in values]


async def test_json_is_a_generic_record(client: encore.Client) -> None:
    record, null = await read(client, Json(Order), Order(1, [{"sku": "x"}]), None)
    assert record == {"id": 1, "lines": [{"sku": "x"}]}
    assert dict(record) == {"id": 1, "lines": [{"sku": "x"}]}
    assert (record["id"], len(record), list(record)) == (1, 2, ["id", "lines"])
    assert record.schema.kind == "JSON"
    assert isinstance(record, encore.GenericRecord)
    assert "'id': 1" in repr(record)
    assert null is None


async def test_each_version_of_an_avro_schema_has_its_own_fields(client: encore.Client) -> None:
    def box(*fields: str) -> Any:
        names = [{"name": each, "type": "int"} for each in fields]
        return AvroSchema(None, {"type": "record", "name": "Box", "fields": names})

    values = []
    consumer = await client.subscribe("t", "s", schema=encore.AutoConsume())
    for fields in (("width",), ("width", "height"), ("width",)):
        async with client.create_producer("t", schema=box(*fields)) as producer:
            await producer.send(dict.fromkeys(fields, 3))
        values.append((await consumer.receive(timeout=5)).value())
    assert values == [{"width": 3}, {"width": 3, "height": 3}, {"width": 3}]
    assert values[1].schema.kind == "AVRO"


@pytest.mark.parametrize("encoding", ["inline", "separated"])
async def test_a_pair_is_a_tuple(client: encore.Client, encoding: Any) -> None:
    schema = KeyValue(StringSchema(), Json(Order), encoding=encoding)
    got = await read(client, schema, ("k", Order(1, [])), ("k", None), (None, Order(2, [])), None)
    one, two = {"id": 1, "lines": []}, {"id": 2, "lines": []}
    nothing = None if encoding == "inline" else (None, None)
    assert got == [("k", one), ("k", None), (None, two), nothing]


async def test_protobuf_messages_are_made_of_the_descriptors(client: encore.Client) -> None:
    [got] = await read(client, ProtobufNativeSchema(Timestamp), Timestamp(seconds=7))
    assert got.seconds == 7
    assert type(got).DESCRIPTOR.full_name == "google.protobuf.Timestamp"


DAY = dt.date(2026, 1, 2)
DAYS = (DAY - dt.date(1970, 1, 1)).days
NANOS = ((1 * 60 + 2) * 60 + 3) * 10**9 + 4000


@pytest.mark.parametrize(
    ("kind", "data", "expected"),
    [
        ("STRING", "tëxt".encode(), "tëxt"),
        ("BOOLEAN", b"\1", True),
        ("INT8", b"\xfd", -3),
        ("INT16", b"\xff\xfd", -3),
        ("INT32", b"\xff\xff\xff\xfd", -3),
        ("INT64", struct.pack(">q", -(1 << 40)), -(1 << 40)),
        ("FLOAT", struct.pack(">f", 1.5), 1.5),
        ("DOUBLE", struct.pack(">d", 1.5), 1.5),
        ("DATE", struct.pack(">q", 1000), dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)),
        ("TIME", struct.pack(">q", 1000), dt.time(0, 0, 1)),
        (
            "TIMESTAMP",
            struct.pack(">q", 1001),
            dt.datetime(1970, 1, 1, 0, 0, 1, 1000, tzinfo=dt.UTC),
        ),
        (
            "INSTANT",
            struct.pack(">qi", 1, 5000),
            dt.datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=dt.UTC),
        ),
        ("LOCAL_DATE", struct.pack(">q", DAYS), DAY),
        ("LOCAL_TIME", struct.pack(">q", NANOS), dt.time(1, 2, 3, 4)),
        (
            "LOCAL_DATE_TIME",
            struct.pack(">qq", DAYS, NANOS),
            dt.datetime(2026, 1, 2, 1, 2, 3, 4),
        ),
    ],
)
async def test_primitive_types_are_python_objects(
    client: encore.Client, kind: str, data: bytes, expected: Any
) -> None:
    [got] = await read(client, Raw(kind), data)
    assert got == expected
    assert type(got) is type(expected)


async def test_messages_without_a_schema_are_bytes(client: encore.Client) -> None:
    assert await read(client, None, b"\xff", None) == [b"\xff", None]


@pytest.mark.parametrize(
    ("kind", "data", "text"),
    [
        ("PROTOBUF", b"", "schema type PROTOBUF"),
        ("JSON", b"{", "AutoConsume"),
        ("INT32", b"1", "4"),
    ],
)
async def test_a_payload_that_does_not_decode_is_a_decode_error(
    client: encore.Client, kind: str, data: bytes, text: str
) -> None:
    with pytest.raises(encore.DecodeError, match=text):
        await read(client, Raw(kind), data)


async def test_a_reader_reads_any_schema(client: encore.Client) -> None:
    async with client.create_producer("t", schema=Json(Order)) as producer:
        await producer.send(Order(1, []))
    start = encore.MessageId.earliest
    async with client.create_reader("t", start, schema=encore.AutoConsume()) as reader:
        assert (await reader.read_next(timeout=5)).value() == {"id": 1, "lines": []}


async def test_a_producer_cannot_use_it(client: encore.Client) -> None:
    with pytest.raises(encore.ConfigurationError, match="AutoConsume only reads"):
        await client.create_producer("t", schema=encore.AutoConsume())
