"""Record batches become the same messages as single rows would."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from io import BytesIO
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_reader
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from sink_kit import URL, batch_of, schema_of

from pulsar_encore.consumer.forwarding.copy_options import Destination
from pulsar_encore.errors import ConfigurationError
from pulsar_encore.spark.sink.arrays import maps_of
from pulsar_encore.spark.sink.letter_copies import AttemptTimes, copy_rule
from pulsar_encore.spark.sink.row_batches import CopiedRows, ProducedRows, RowChunk
from pulsar_encore.spark.sink.sink_columns import layout_of
from pulsar_encore.spark.sink.sink_options import sink_options
from pulsar_encore.spark.sink.value_encoder import encoder_of
from pulsar_encore.values.message_id import MessageId
from pulsar_encore.values.outgoing_message import OutgoingMessage

NOW = AttemptTimes(1_000_000, 1_000_001)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PREFIX = "persistent://public/default/"

SCHEMA = schema_of(
    value="binary",
    __topic="string",
    __key="binary",
    __orderingKey="string",
    __eventTime="timestamp",
    __messageProperties="map",
    __deliverAfterMs="long",
    __replicationClusters="texts",
)


def read(schema: StructType, batch: pa.RecordBatch, first: int = 0, **options: str) -> RowChunk:
    checked = sink_options({"service.url": URL, "topic": "t", **options}, streaming=False)
    return ProducedRows(layout_of(schema, checked), checked).read(batch, first, NOW)


def message_of(row: tuple[Any, ...]) -> OutgoingMessage:
    """Return the same message by the simplest code."""
    value, _, key, ordering_key, event_time, properties, after_ms, clusters = row
    return OutgoingMessage(
        payload=value,
        properties=dict(properties) if properties else None,
        partition_key=key,
        ordering_key=ordering_key,
        replication_clusters=clusters,
        event_timestamp=None
        if event_time is None
        else (event_time - EPOCH) // timedelta(milliseconds=1),
        deliver_at=NOW.wall_from + after_ms if after_ms else None,
    )


TEXTS = st.text(st.characters(codec="utf-8"), max_size=4)
ROWS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=5),
        st.none() | st.sampled_from(("a", "public/default/b", PREFIX + "c")),
        st.none() | st.binary(max_size=3),
        st.none() | TEXTS,
        st.none()
        | st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1)).map(
            lambda each: each.replace(tzinfo=UTC)
        ),
        st.none() | st.lists(st.tuples(TEXTS, TEXTS), max_size=3, unique_by=lambda pair: pair[0]),
        st.none() | st.integers(0, 10**9),
        st.none() | st.lists(TEXTS, max_size=2),
    ),
    max_size=8,
)


@given(ROWS, st.integers(0, 3), st.integers(0, 3))
def test_columns_give_the_same_messages_as_rows(
    rows: list[tuple[Any, ...]], skip: int, drop: int
) -> None:
    kept = rows[skip : max(skip, len(rows) - drop)]
    sliced = batch_of(SCHEMA, rows).slice(skip, len(kept))
    found = read(SCHEMA, sliced)
    assert found.messages == [message_of(row) for row in kept]
    full = {None: "t", "a": "a", "public/default/b": "b", PREFIX + "c": "c"}
    assert found.destinations == [Destination(PREFIX + full[row[1]]) for row in kept]
    assert found.size == sum(len(row[0] or b"") for row in kept)


def test_one_topic_for_all_rows_is_given_once() -> None:
    schema = schema_of(value="string")
    found = read(schema, batch_of(schema, [("é",), (None,)]))
    assert found.destinations == Destination(PREFIX + "t")
    assert [each.payload for each in found.messages] == ["é".encode(), None]
    assert found.size == 2


def test_keys_of_bytes_can_be_text() -> None:
    schema = schema_of(value="binary", __key="binary")
    batch = batch_of(schema, [(b"", b"k"), (b"", None)])
    assert [each.partition_key for each in read(schema, batch).messages] == [b"k", None]
    text = read(schema, batch, textKeys="true")
    assert [each.partition_key for each in text.messages] == ["k", None]
    with pytest.raises(ConfigurationError, match="__key has bytes that are no text"):
        read(schema, batch_of(schema, [(b"", b"\xff")]), textKeys="true")


def test_the_row_decides_whether_a_key_is_text_or_bytes() -> None:
    schema = schema_of(value="binary", __key="binary", __keyIsBytes="boolean")
    rows = [(b"", b"k", False), (b"", b"k", True), (b"", None, None), (b"", b"", False)]
    batch = batch_of(schema, rows)
    for options in ({}, {"textKeys": "true"}, {"textKeys": "false"}):
        found = read(schema, batch, **options).messages
        assert [each.partition_key for each in found] == ["k", b"k", None, ""]
    unsaid = batch_of(schema, [(b"", b"k", None)])
    assert read(schema, unsaid, textKeys="true").messages[0].partition_key == "k"
    assert read(schema, unsaid, textKeys="false").messages[0].partition_key == b"k"
    with pytest.raises(ConfigurationError, match="__key has bytes that are no text in UTF-8 in"):
        read(schema, batch_of(schema, [(b"", b"\xff", False)]))


def test_a_copy_looks_up_only_keys_of_rows_that_do_not_give_the_encoding() -> None:
    schema = schema_of(
        value="binary",
        __topic="string",
        __messageId="binary",
        __messageProperties="map",
        __key="binary",
        __keyIsBytes="boolean",
    )
    given = {"service.url": URL, "sinkMode": "dead_letter", "subscription": "s"}
    here = MessageId(-1, 1, 1).serialize()

    def keys(*rows: tuple[bytes | None, bool | None], **more: str) -> list[str | bytes | None]:
        checked = sink_options({**given, **more}, streaming=False)
        rule = copy_rule(checked, refuse_byte_keys=False, rng=Random(0))
        reader = CopiedRows(layout_of(schema, checked), checked, rule)
        batch = batch_of(schema, [(b"", "t", here, None, *row) for row in rows])
        return [each.partition_key for each in reader.read(batch, 5, NOW).messages]

    assert keys((b"k", False), (b"k", True), (None, None)) == ["k", b"k", None]
    assert keys((b"k", None), textKeys="true") == ["k"]
    with pytest.raises(ConfigurationError, match=r"__keyIsBytes is null in row 6 .* textKeys"):
        keys((b"k", False), (b"k", None))


def test_a_null_cluster_is_an_error_that_names_the_column() -> None:
    schema = schema_of(value="binary", __replicationClusters="texts")
    batch = batch_of(schema, [(b"", ["a"]), (b"", ["b", None])])
    with pytest.raises(ConfigurationError, match=r"__replicationClusters has null .* in row 8 "):
        read(schema, batch, first=7)


@pytest.mark.parametrize("column", ["__topic", "__key", "text"])
def test_invalid_text_is_an_error_that_names_the_column(column: str) -> None:
    schema = schema_of(value="string", **{column: "string"})
    good = pa.array(["a", "b"], pa.string())
    # Spark's strings can be invalid in this way.
    bad = pa.array([b"a", b"\xff\xfe"], pa.binary()).view(pa.string())
    batch = pa.record_batch(
        [bad if name == column else good for name in schema.names], names=schema.names
    )
    options = {} if column.startswith("__") else {"valueFormat": "json"}
    with pytest.raises(ConfigurationError, match=rf"{column} has a text that is not UTF-8: b'.xff"):
        read(schema, batch, **options)


def test_a_delivery_time_is_set() -> None:
    schema = schema_of(value="binary", __deliverAt="timestamp")
    due = EPOCH + timedelta(days=20_000, microseconds=1999)
    found = read(schema, batch_of(schema, [(b"", due), (b"", None)]))
    assert [each.deliver_at for each in found.messages] == [20_000 * 86_400_000 + 1, None]


def test_a_row_without_a_topic_is_an_error() -> None:
    schema = schema_of(value="binary", __topic="string")
    checked = sink_options({"service.url": URL}, streaming=False)
    rows = ProducedRows(layout_of(schema, checked), checked)
    batch = batch_of(schema, [(b"", "a"), (b"", None)])
    with pytest.raises(ConfigurationError, match="__topic is null in row 11 of the task"):
        rows.read(batch, 10, NOW)
    with pytest.raises(ConfigurationError, match="__topic must be a name"):
        rows.read(batch_of(schema, [(b"", "a/b")]), 0, NOW)


@pytest.mark.parametrize(
    ("kind", "name", "value", "message"),
    [
        ("timestamp", "__eventTime", EPOCH - timedelta(seconds=1), "is before 1970 in row 3"),
        ("timestamp", "__deliverAt", EPOCH - timedelta(days=1), "is before 1970 in row 3"),
        ("long", "__deliverAfterMs", -1, "is negative in row 3"),
        ("long", "__deliverAfterMs", (1 << 63) - 1, "is over 100 years in row 3"),
        ("map", "__messageProperties", [("a", None)], "the property 'a' with null"),
    ],
)
def test_values_that_no_message_can_have_are_errors(
    kind: str, name: str, value: Any, message: str
) -> None:
    schema = schema_of(value="binary", **{name: kind})
    with pytest.raises(ConfigurationError, match=f"{name} .*{message}"):
        read(schema, batch_of(schema, [(b"", None), (b"", value)]), 2)


# Records

RECORD = StructType(
    [
        StructField("id", LongType()),
        StructField("name", StringType()),
        StructField("raw", BinaryType()),
        StructField("at", TimestampType()),
        StructField("local", TimestampNTZType()),
        StructField("day", DateType()),
        StructField("tags", ArrayType(BinaryType())),
        StructField("more", MapType(StringType(), DateType())),
        StructField("inner", StructType([StructField("when", TimestampType())])),
    ]
)


def test_json_has_every_field() -> None:
    at = datetime(2024, 5, 6, 7, 8, 9, 120_000, tzinfo=UTC)
    day = date(2024, 5, 6)
    rows = [
        (1, "ü", b"\0", at, at.replace(tzinfo=None), day, [b"a", None], [("d", day)], {"when": at}),
        (None,) * 9,
    ]
    found = read(RECORD, batch_of(RECORD, rows), valueFormat="json")
    one, none = (json.loads(each.payload or b"") for each in found.messages)
    assert one == {
        "id": 1,
        "name": "ü",
        "raw": "AA==",
        "at": "2024-05-06T07:08:09.120Z",
        "local": "2024-05-06T07:08:09.120",
        "day": "2024-05-06",
        "tags": ["YQ==", None],
        "more": {"d": "2024-05-06"},
        "inner": {"when": "2024-05-06T07:08:09.120Z"},
    }
    assert none == dict.fromkeys(one)


def test_json_has_no_infinity() -> None:
    schema = schema_of(x="double")
    with pytest.raises(ConfigurationError, match="neither NaN nor infinity"):
        read(schema, batch_of(schema, [(float("nan"),)]), valueFormat="json")


AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "int"},
            {"name": "name", "type": ["null", "string"], "default": None},
        ],
    }
)


def test_avro_follows_the_schema() -> None:
    schema = schema_of(name="string", id="int", __key="string")
    batch = batch_of(schema, [("a", 1, "k"), (None, 2, None)])
    found = read(schema, batch, valueFormat="avro", valueSchema=AVRO)
    parsed = parse_schema(json.loads(AVRO))
    decoded = [
        schemaless_reader(BytesIO(each.payload or b""), parsed, None) for each in found.messages
    ]
    assert decoded == [{"id": 1, "name": "a"}, {"id": 2, "name": None}]
    assert [each.partition_key for each in found.messages] == ["k", None]


@pytest.mark.parametrize(
    ("fields", "value_schema", "message"),
    [
        (["name"], AVRO, "there is no column id"),
        (["id", "size"], AVRO, "it has no field size"),
        (["id"], "{", "valueSchema is no JSON"),
        (["id"], '"int"', "must be an Avro record"),
        (["id"], '{"type":"record","name":"a","fields":[{"name":"id","type":"x"}]}', "cannot"),
    ],
)
def test_columns_that_do_not_fit_the_schema_are_errors(
    fields: list[str], value_schema: str, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        encoder_of("avro", [StructField(each, IntegerType()) for each in fields], value_schema)


def test_a_row_that_does_not_fit_is_an_error() -> None:
    schema = schema_of(id="int")
    with pytest.raises(ConfigurationError, match="a row does not fit valueSchema"):
        read(schema, batch_of(schema, [(None,)]), valueFormat="avro", valueSchema=AVRO)


def test_entries_under_a_null_map_are_ignored() -> None:
    """Arrow allows entries under a null. They must not be visible."""
    texts = pa.array(["a", "b"])
    column = pa.MapArray.from_arrays([0, 1, 2], texts, texts, mask=pa.array([True, False]))
    assert maps_of(column, "m") == [None, {"b": "b"}]
