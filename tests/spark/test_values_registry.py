"""Values with registered schemas on a development broker: planned once, and read by version."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType
from reader_kit import TOPIC, Stream, publish, read_batch, read_ranges, source

import pulsar_encore as encore
from pulsar_encore.devbroker import BrokerThread
from pulsar_encore.errors import ConfigurationError, NotSupportedError
from pulsar_encore.schema import (
    Array,
    AvroSchema,
    Integer,
    JsonSchema,
    Long,
    Map,
    Record,
    String,
    StringSchema,
)
from pulsar_encore.spark import MalformedValueError, PulsarDataSource
from pulsar_encore.testing import MemoryTransport
from pulsar_encore.wire import pulsar_pb2 as pb

HIDE = {"includeMetadata": "none"}
OTHER = "persistent://public/default/other"


@pytest.fixture
def url() -> Iterator[str]:
    with BrokerThread() as broker:
        yield broker.url


class Order(Record):
    id = Long()
    name = String()
    tags = Array(String())
    counts = Map(Integer())


class Wire:
    """A schema of any type with bytes as values."""

    key_value = False

    def __init__(self, kind: str, data: bytes = b"", **properties: str) -> None:
        self._info = pb.Schema(name=kind, type=pb.Schema.Type.Value(kind), schema_data=data)
        for key, value in properties.items():
            self._info.properties.add(key=key.replace("__", "."), value=value)

    def schema_info(self) -> Any:
        return self._info

    def encode(self, data: bytes) -> bytes:
        return data

    def decode(self, data: bytes) -> bytes:
        return data

    def decode_message(self, message: Any) -> bytes:
        raise NotImplementedError


def avro(fields: str, name: str = "R") -> Any:
    return AvroSchema(None, json.loads(f'{{"type":"record","name":"{name}","fields":[{fields}]}}'))


def contents(*values: Any) -> list[dict[str, Any]]:
    return [{"content": each} for each in values]


def rows(url: str, schema: StructType | None = None, **options: Any) -> list[dict[str, Any]]:
    return read_batch(url, schema, valueFormat="schema", **{**HIDE, **options})


@pytest.mark.parametrize("schema", [AvroSchema(Order), JsonSchema(Order)])
@pytest.mark.parametrize("batch", [0, 10])
def test_the_fields_of_a_record_are_columns(url: str, schema: Any, batch: int) -> None:
    orders = [Order(id=each, name=f"n{each}", tags=["é"], counts={"a": 1}) for each in range(20)]
    publish(url, *contents(*orders), schema=schema, batch=batch)
    made = source(url, valueFormat="schema")
    assert {each.name: each.dataType.simpleString() for each in made.schema()} == {
        "id": "bigint",
        "name": "string",
        "tags": "array<string>",
        "counts": "map<string,int>",
        "_corrupt_record": "binary",
        **{each.name: each.dataType.simpleString() for each in source(url).schema()[1:]},
    }
    want = {"tags": ["é"], "counts": [("a", 1)], "_corrupt_record": None}
    assert rows(url) == [{"id": each, "name": f"n{each}", **want} for each in range(20)]


def test_a_users_schema_can_select_fields_and_columns(url: str) -> None:
    publish(url, *contents(Order(id=1, name="a"), Order(id=2)), schema=AvroSchema(Order))
    asked = StructType(
        [
            StructField("__topic", StringType(), False),
            StructField("name", StringType()),
            StructField("id", LongType()),
        ]
    )
    found = rows(url, asked, includeMetadata="topic")
    assert [(row["name"], row["id"], list(row)) for row in found] == [
        ("a", 1, ["__topic", "name", "id"]),
        (None, 2, ["__topic", "name", "id"]),
    ]
    for wrong in (StructField("id", IntegerType()), StructField("id", LongType(), False)):
        with pytest.raises(ConfigurationError, match="schema: id"):
            rows(url, StructType([wrong]))


def test_each_version_is_read_with_its_own_schema(url: str) -> None:
    old = avro('{"name":"a","type":"int"},{"name":"b","type":"string"}')
    new = avro('{"name":"b","type":"string"},{"name":"a","type":"long"},'
               '{"name":"c","type":"double","default":0.5}')  # fmt: skip
    publish(url, *contents({"a": 1, "b": "x"}), schema=old)
    publish(url, *contents({"a": 2, "b": "y", "c": 1.5}), schema=new)
    publish(url, *contents({"a": 3, "b": "z"}), schema=old)
    found = [(row["a"], row["b"], row["c"]) for row in rows(url)]
    assert found == [(1, "x", 0.5), (2, "y", 1.5), (3, "z", 0.5)]
    # This also holds with a schema of the user.
    own = json.dumps(
        {"type": "record", "name": "Mine", "fields": [{"name": "b", "type": "string"}]}
    )
    mine = read_batch(url, valueFormat="avro", valueSchema=own, **HIDE)
    assert [row["b"] for row in mine] == ["x", "y", "z"]


def test_each_version_is_fetched_once_in_a_task() -> None:
    with BrokerThread() as broker:
        for each in range(3):
            publish(broker.url, *contents({"a": each}), schema=avro('{"name":"a","type":"int"}'))
        for _ in range(2):
            before = len(broker.recorded("GET_SCHEMA", "in"))
            assert [row["a"] for row in rows(broker.url)] == [0, 1, 2]
            # The latest version for the plan, and version 0 for the task.
            assert len(broker.recorded("GET_SCHEMA", "in")) - before == 2


def test_a_recreated_topic_is_read_with_its_new_schemas() -> None:
    """Version numbers begin at 0 again, and Spark uses one process for many queries."""
    with BrokerThread() as broker:
        for first, second in (("a", "b"), ("b", "a")):
            fields = ",".join(f'{{"name":"{each}","type":"int"}}' for each in (first, second))
            publish(broker.url, *contents({"a": 1, "b": 2}), schema=avro(fields))
            assert rows(broker.url) == [{"a": 1, "b": 2, "_corrupt_record": None}]
            broker.delete_topic(TOPIC)


@pytest.mark.parametrize(
    ("schema", "value", "kind", "want"),
    [
        (StringSchema(), "é", "string", "é"),
        (Wire("Int64"), struct.pack(">q", -5), "bigint", -5),
        (Wire("Bool"), b"\1", "boolean", True),
        (None, b"\xff", "binary", b"\xff"),
    ],
)
def test_primitives_and_bytes_are_read(
    url: str, schema: Any, value: Any, kind: str, want: Any
) -> None:
    options = {} if schema is None else {"schema": schema}
    publish(url, *contents(value), **options)
    assert source(url, valueFormat="schema").schema()["value"].dataType.simpleString() == kind
    assert rows(url) == [{"value": want}]


def pairs(encoding: str) -> Wire:
    key = b""
    value = AvroSchema(Order).schema_info().schema().encode()
    data = struct.pack(">i", len(key)) + key + struct.pack(">i", len(value)) + value
    return Wire(
        "KeyValue",
        data,
        key__schema__type="INT32",
        value__schema__type="AVRO",
        kv__encoding__type=encoding,
    )


def test_pairs_of_both_encodings_are_read(url: str) -> None:
    value = AvroSchema(Order).encode(Order(id=7))
    key = struct.pack(">i", 3)
    inline = struct.pack(">i", 4) + key + struct.pack(">i", len(value)) + value
    publish(url, *contents(inline), schema=pairs("INLINE"))
    publish(
        url,
        {"content": value, "partition_key": key},
        schema=pairs("SEPARATED"),
        topic=OTHER,
    )
    for topic in ("t", OTHER):
        [row] = rows(url, topic=topic)
        assert row["key"] == 3
        assert row["value"] == {"id": 7, "name": None, "tags": None, "counts": None}
        assert row["_corrupt_record"] is None


@pytest.mark.parametrize("kind", ["Protobuf", "ProtobufNative", "External"])
def test_an_unsupported_schema_type_is_an_error_that_names_it(url: str, kind: str) -> None:
    publish(url, *contents(b"x"), schema=Wire(kind, b"{}"))
    with pytest.raises(ConfigurationError, match=rf"t has .* {kind.upper()}.*valueFormat=raw"):
        source(url, valueFormat="schema").schema()
    assert [row["value"] for row in read_batch(url)] == [b"x"]


def test_topics_with_different_schemas_are_an_error_or_raw(url: str) -> None:
    publish(url, *contents(Order(id=1)), schema=AvroSchema(Order))
    publish(url, *contents("x"), schema=StringSchema(), topic=OTHER)
    both = {"topics": f"t,{OTHER}", "valueFormat": "schema", **HIDE}
    with pytest.raises(ConfigurationError, match=r"t and .*other.*AVRO and STRING.*allowDifferent"):
        two(url, **both).schema()
    made = two(url, allowDifferentTopicSchemas="true", **both)
    assert made.schema().names == ["value"]
    publish(url, *contents(b"x"), topic=OTHER + "-none")
    with pytest.raises(ConfigurationError, match="AVRO and none"):
        two(url, **{**both, "topics": f"t,{OTHER}-none"}).schema()


def test_topics_with_equal_schemas_are_read_together(url: str) -> None:
    for topic, space in (("t", " "), (OTHER, "  ")):
        text = f'{{"type":"record","name":"R",{space}"fields":[{{"name":"a","type":"int"}}]}}'
        data = text.encode()
        publish(url, *contents(b"\x02"), schema=Wire("Avro", data), topic=topic)
    for how in ({"topics": f"t,{OTHER}"}, {"topicsPattern": "persistent://public/default/.*"}):
        made = two(url, valueFormat="schema", **HIDE, **how)
        reader = made.reader(made.schema())
        assert [row["a"] for row in read_ranges(reader, reader.partitions())] == [1, 1]


def two(url: str, **options: Any) -> PulsarDataSource:
    return PulsarDataSource(
        {"service.url": url, **{name.lower(): str(value) for name, value in options.items()}}
    )


def test_a_topic_that_does_not_exist_yet_is_raw(url: str) -> None:
    assert source(url, valueFormat="schema", **HIDE).schema().names == ["value"]


def test_the_planned_schema_is_pickled_with_the_source_and_its_readers(url: str) -> None:
    """PySpark pickles the source once its schema is known.

    A version that is registered later does not change the columns of the query.
    """
    publish(url, *contents({"a": 1}), schema=avro('{"name":"a","type":"int"}'))
    made = source(url, valueFormat="schema", **HIDE)
    schema = made.schema()
    new = avro('{"name":"a","type":"int"},{"name":"b","type":"int","default":0}')
    publish(url, *contents({"a": 2, "b": 5}), schema=new)
    reader = pickle.loads(pickle.dumps(made)).reader(schema)
    assert [row["a"] for row in read_ranges(reader, reader.partitions())] == [1, 2]
    assert schema.names == ["a", "_corrupt_record"]


def test_malformed_values_follow_the_mode(url: str) -> None:
    good = Order(id=1)
    schema = JsonSchema(Order)
    broken: Any = Wire("Json", schema.schema_info().schema().encode())
    publish(url, *contents(good), schema=schema)
    [sent] = publish(url, *contents(b"{"), schema=broken)
    publish(url, *contents(good), schema=schema)
    found = [(row["id"], row["_corrupt_record"]) for row in rows(url)]
    assert found == [(1, None), (None, b"{"), (1, None)]
    assert [row["id"] for row in rows(url, mode="DROPMALFORMED")] == [1, 1]
    with pytest.raises(MalformedValueError, match="public/default/t") as caught:
        rows(url, mode="FAILFAST")
    assert f"{sent.ledger_id()}:{sent.entry_id()}:" in str(caught.value)


def test_a_message_without_a_value_has_nulls(url: str) -> None:
    publish(url, *contents(Order(id=1), None), schema=AvroSchema(Order))
    found = [(row["id"], row["_corrupt_record"]) for row in rows(url, mode="PERMISSIVE")]
    assert found == [(1, None), (None, None)]
    assert [row["id"] for row in rows(url, mode="FAILFAST")] == [1, None]


def test_a_stream_is_decoded_too(url: str) -> None:
    publish(url, *contents(Order(id=1)), schema=AvroSchema(Order))
    stream = Stream(url, valueFormat="schema", startingOffsets="earliest", **HIDE)
    publish(url, *contents(Order(id=2)), schema=AvroSchema(Order))
    assert [row["id"] for row in stream.run().rows] == [1, 2]


def test_a_field_with_the_name_of_a_column_is_refused(url: str) -> None:
    publish(url, *contents({"__key": 1}), schema=avro('{"name":"__key","type":"int"}'))
    with pytest.raises(ConfigurationError, match=r"__key.*metadataPrefix"):
        source(url, valueFormat="schema").schema()
    assert "__key" in source(url, valueFormat="schema", metadataPrefix="_p_").schema().names


def test_the_error_says_that_the_stock_transport_does_not_support_it(url: str) -> None:
    with pytest.raises(NotSupportedError, match="native"):
        source(url, valueFormat="schema", pulsar__client__transport="stock").schema()


async def test_the_transport_returns_the_latest_schema() -> None:
    transport = MemoryTransport()
    async with encore.Client("memory://", transport=transport) as client:
        assert await transport.latest_schema("t") is None
        for text in ("1", "2"):
            schema: Any = Wire("Json", text.encode())
            await (await client.create_producer("t", schema=schema)).close()
        latest = await transport.latest_schema("t")
        assert latest is not None
        assert latest.schema_info().schema_data == b"2"
        assert (await transport.schema_of("t", 0)).schema_info().schema_data == b"1"
