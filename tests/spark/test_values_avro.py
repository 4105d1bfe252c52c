"""Avro values: types, writer schemas, and values that cannot be read."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st
from values_kit import TOPIC, avro_plan, decoded

from pulsar_encore.errors import ConfigurationError
from pulsar_encore.spark import MalformedValueError
from pulsar_encore.spark.reader.values.decoder_choice import value_fields


def record(*fields: tuple[str, Any], name: str = "R", **more: Any) -> str:
    listed = [{"name": field, "type": kind} for field, kind in fields]
    return json.dumps({"type": "record", "name": name, "fields": listed, **more})


def written(schema: str, value: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(json.loads(schema)), value)
    return buffer.getvalue()


def long(logical: str) -> dict[str, str]:
    return {"type": "long", "logicalType": logical}


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
WIDE = record(
    ("b", "boolean"),
    ("i", "int"),
    ("l", ["null", "long"]),
    ("f", "float"),
    ("d", "double"),
    ("s", "string"),
    ("y", "bytes"),
    ("x", {"type": "fixed", "name": "Two", "size": 2}),
    ("x2", ["null", "Two"]),
    ("e", {"type": "enum", "name": "E", "symbols": ["ON", "OFF"]}),
    ("day", {"type": "int", "logicalType": "date"}),
    ("ms", long("timestamp-millis")),
    ("us", ["null", long("timestamp-micros")]),
    ("lms", long("local-timestamp-millis")),
    ("tod", long("time-micros")),
    ("id", {"type": "string", "logicalType": "uuid"}),
    ("dec", DECIMAL),
    ("decs", {"type": "array", "items": ["null", DECIMAL]}),
    ("map", {"type": "map", "values": long("timestamp-millis")}),
    ("in", json.loads(record(("z", "int"), ("m", {"type": "map", "values": "int"}), name="In"))),
    ("ins", {"type": "array", "items": "In"}),
    ("n", "null"),
    ("wide", ["int", "long"]),
    (
        "u",
        ["null", "string", "long", DECIMAL, {"type": "array", "items": long("timestamp-millis")}],
    ),
)
VALUE: dict[str, Any] = {
    "b": True,
    "i": -(2**31),
    "l": 2**63 - 1,
    "f": 0.5,
    "d": 0.1,
    "s": "é",
    "y": b"\xff",
    "x": b"ab",
    "x2": b"cd",
    "e": "OFF",
    "day": date(2024, 2, 29),
    "ms": datetime(2024, 2, 29, 1, 2, 3, 4000, UTC),
    "us": datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
    "lms": datetime(2024, 2, 29, 1, 2, 3, 4000),
    "tod": 5,
    "id": "6f1e2a52-6b0c-4a57-8f3a-1f7d7f1a2b3c",
    "dec": Decimal("-1234.56"),
    "decs": [Decimal("0.01"), None],
    "map": {"a": datetime(2024, 1, 1, tzinfo=UTC)},
    "in": {"z": 1, "m": {"k": 2}},
    "ins": [{"z": 2, "m": {}}],
    "n": None,
    "wide": 2**40,
    "u": "x",
}


def row_of(value: dict[str, Any]) -> dict[str, Any]:
    """Return the row in Arrow's form."""
    return {
        **value,
        "map": list(value["map"].items()),
        "in": {"z": 1, "m": [("k", 2)]},
        "ins": [{"z": 2, "m": []}],
        "u": {"member0": "x", "member1": None, "member2": None, "member3": None},
        "_corrupt_record": None,
    }


def test_each_type_becomes_that_of_the_jvm_connector() -> None:
    types = {each.name: each.dataType.simpleString() for each in value_fields(avro_plan(WIDE))}
    assert types == {
        **{"b": "boolean", "i": "int", "l": "bigint", "f": "float", "d": "double", "s": "string"},
        **{"y": "binary", "x": "binary", "x2": "binary", "e": "string", "day": "date"},
        **{"ms": "timestamp", "us": "timestamp", "lms": "timestamp_ntz", "tod": "bigint"},
        **{"id": "string", "dec": "decimal(6,2)", "decs": "array<decimal(6,2)>"},
        **{"map": "map<string,timestamp>", "in": "struct<z:int,m:map<string,int>>"},
        **{"ins": "array<struct<z:int,m:map<string,int>>>", "n": "void", "wide": "bigint"},
        "u": "struct<member0:string,member1:bigint,member2:decimal(6,2),member3:array<timestamp>>",
        "_corrupt_record": "binary",
    }


def test_values_of_each_type() -> None:
    value = {**VALUE, "tod": 5}
    data = written(WIDE.replace("time-micros", "none"), value)
    [row, nothing] = decoded(avro_plan(WIDE), [data, None]).to_pylist()
    assert row == row_of(value)
    assert set(nothing.values()) == {None}


@pytest.mark.parametrize(
    ("member", "want"),
    [
        (None, None),
        (7, {"member1": 7}),
        (Decimal("1.5"), {"member2": Decimal("1.50")}),
        ([VALUE["ms"]], {"member3": [VALUE["ms"]]}),
    ],
)
def test_a_union_is_a_struct_with_one_member_set(member: Any, want: Any) -> None:
    data = written(WIDE.replace("time-micros", "none"), {**VALUE, "u": member})
    [row] = decoded(avro_plan(WIDE), [data], only=["u"]).to_pylist()
    assert row["u"] == (want and {f"member{at}": want.get(f"member{at}") for at in range(4)})


@given(
    st.lists(
        st.none()
        | st.fixed_dictionaries(
            {
                "id": st.integers(-(2**63), 2**63 - 1),
                "s": st.none() | st.text(max_size=5),
                "d": st.decimals(-9999, 9999, places=2).map(lambda each: each + 0),
                "all": st.lists(st.none() | st.binary(max_size=3), max_size=3),
            }
        ),
        max_size=20,
    )
)
def test_encoded_values_can_be_decoded(values: list[dict[str, Any] | None]) -> None:
    schema = record(
        ("id", "long"),
        ("s", ["null", "string"]),
        ("d", DECIMAL),
        ("all", {"type": "array", "items": ["null", "bytes"]}),
    )
    data = [None if each is None else written(schema, each) for each in values]
    nothing = dict.fromkeys(("id", "s", "d", "all", "_corrupt_record"))
    assert decoded(avro_plan(schema), data).to_pylist() == [
        {**nothing, **(each or {})} for each in values
    ]


OLD = record(("a", "int"), ("b", "string"), name="Old", namespace="com.example")
NEW = json.dumps(
    {
        "type": "record",
        "name": "New",
        "fields": [
            {"name": "b", "type": "string"},
            {"name": "c", "type": "double", "default": 0.5},
            {"name": "a", "type": "long"},
        ],
    }
)


def test_each_value_is_read_with_its_writer_schema() -> None:
    old, new = written(OLD, {"a": 1, "b": "x"}), written(NEW, {"a": 2, "b": "y", "c": 1.5})
    batch = decoded(
        avro_plan(NEW), [old, new, old, new], versions=[0, 1, 0, -1], writers={0: OLD, 1: NEW}
    )
    assert (
        batch.select(["a", "b", "c"]).to_pylist()
        == [
            {"a": 1, "b": "x", "c": 0.5},
            {"a": 2, "b": "y", "c": 1.5},
        ]
        * 2
    )
    narrow = decoded(
        avro_plan(NEW), [old, new], only=["a"], versions=[0, 1], writers={0: OLD, 1: NEW}
    )
    assert narrow.to_pylist() == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    ("writer", "why"),
    [
        (None, "does not exist any more"),
        (record(("a", "string"), ("b", "string")), "schema version 5"),
        ("{", "Avro"),
    ],
)
def test_an_unusable_schema_version_is_malformed(writer: str | None, why: str) -> None:
    good = written(NEW, {"a": 2, "b": "y", "c": 1.5})
    data = [good, written(record(("a", "string"), ("b", "string")), {"a": "1", "b": "x"}), good]
    writers = {0: NEW} | ({5: writer} if writer else {})
    batch = decoded(avro_plan(NEW), data, versions=[0, 5, 0], writers=writers)
    assert batch["a"].to_pylist() == [2, None, 2]
    assert batch["_corrupt_record"].to_pylist() == [None, data[1], None]
    with pytest.raises(MalformedValueError, match=why) as caught:
        decoded(avro_plan(NEW, "FAILFAST"), data, versions=[0, 5, 0], writers=writers)
    assert TOPIC in str(caught.value)
    assert "7:1:-1" in str(caught.value)


def test_missing_and_surplus_bytes_are_malformed() -> None:
    good = written(NEW, {"a": 2, "b": "y", "c": 1.5})
    data = [good[:-1], good, good + b"\0", b"", b"\x03"]
    batch = decoded(avro_plan(NEW), data)
    assert batch["b"].to_pylist() == [None, "y", None, None, None]
    assert batch["_corrupt_record"].to_pylist() == [data[0], None, *data[2:]]
    assert decoded(avro_plan(NEW, "DROPMALFORMED"), data).to_pylist() == [
        {"b": "y", "c": 1.5, "a": 2}
    ]


def test_a_time_outside_of_sparks_range_is_malformed() -> None:
    schema = record(("ms", long("timestamp-millis")))
    data = [
        written(schema.replace("timestamp-millis", "none"), {"ms": each}) for each in (1, 2**62)
    ]
    batch = decoded(avro_plan(schema), data)
    assert batch["ms"].to_pylist() == [datetime(1970, 1, 1, 0, 0, 0, 1000, UTC), None]
    assert batch["_corrupt_record"].to_pylist() == [None, data[1]]


def test_a_type_can_be_defined_in_an_unselected_field() -> None:
    schema = record(
        ("a", json.loads(record(("z", "int"), name="In"))), ("b", "In"), ("c", ["null", "In"])
    )
    data = written(schema, {"a": {"z": 1}, "b": {"z": 2}, "c": None})
    assert decoded(avro_plan(schema), [data], only=["b"]).to_pylist() == [{"b": {"z": 2}}]


def test_a_schema_other_than_a_record_is_one_column() -> None:
    plan = avro_plan('{"type": "array", "items": "int"}')
    batch = decoded(plan, [written('{"type": "array", "items": "int"}', [1, 2]), None])
    assert batch.to_pylist() == [{"value": [1, 2]}, {"value": None}]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("{", "no Avro schema"),
        ('{"type": "record"}', "no Avro schema"),
        (record(("a", "Nothing")), "Nothing"),
        (record(("next", ["null", "R"])), "next is a R in a R"),
        (record(("u", ["int", "long", "string"])), "u is one of int, long, string"),
        (record(("u", ["bytes", {"type": "fixed", "name": "F", "size": 1}])), "valueFormat=raw"),
        (
            record(("d", {"type": "bytes", "logicalType": "decimal", "precision": 39})),
            "39 digits",
        ),
    ],
)
def test_the_error_for_a_schema_without_a_spark_type_says_why(schema: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        avro_plan(schema)
    assert words in str(caught.value)
    assert "valueSchema" in str(caught.value)


@pytest.mark.parametrize(
    ("before", "after", "value", "chosen"),
    [
        ("bytes", ["string", "bytes"], b"x", b"\x02\x02x"),
        (["null", "long"], ["null", "double", "long"], 7, b"\x04\x0e"),
    ],
)
def test_a_member_of_a_union_is_never_guessed(
    before: Any, after: Any, value: Any, chosen: bytes
) -> None:
    """fastavro would take the first possible member: text for bytes, or a fraction for a number."""
    old, new = record(("u", before)), record(("u", after))
    data = [written(old, {"u": value})]
    [row] = decoded(avro_plan(new), data, versions=[0], writers={0: old}).to_pylist()
    assert row == {"u": {"member0": None, "member1": value}, "_corrupt_record": None}
    # With equal schemas no resolution takes place. (Encoded by hand: fastavro would write a
    # double.)
    [same] = decoded(avro_plan(new), [chosen], versions=[0], writers={0: new + " "}).to_pylist()
    assert same["u"] == {"member0": None, "member1": value}
