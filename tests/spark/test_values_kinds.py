"""Values of a single number, text or time, key-value pairs, and their columns."""

from __future__ import annotations

import json
import struct
from datetime import UTC, date, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType, StringType, StructField, StructType
from values_kit import TOPIC, decoded, json_plan, plan_with

from pulsar_encore.errors import ConfigurationError
from pulsar_encore.spark import MalformedValueError
from pulsar_encore.spark.reader.values.decoder_choice import (
    check_columns,
    check_nullable,
    value_fields,
    values_of,
)
from pulsar_encore.spark.reader.values.primitives import FIXED
from pulsar_encore.spark.reader.values.value_decoder import RawValues
from pulsar_encore.spark.reader.values.value_plan import ValueForm, ValuePlan


def plan(kind: str, mode: str = "PERMISSIVE") -> ValuePlan:
    return ValuePlan(value=ValueForm(kind=kind), mode=mode)


def values(plan: ValuePlan, *data: bytes | None) -> list[Any]:
    found: list[Any] = decoded(plan, data)["value"].to_pylist()
    return found


@pytest.mark.parametrize(
    ("kind", "data", "want"),
    [
        ("bool", b"\x01", True),
        ("bool", b"\x00", False),
        ("int8", b"\xff", -1),
        ("int16", struct.pack(">h", -2), -2),
        ("int32", struct.pack(">i", -3), -3),
        ("int64", struct.pack(">q", 2**62), 2**62),
        ("float", struct.pack(">f", 0.5), 0.5),
        ("double", struct.pack(">d", 0.1), 0.1),
        ("date", struct.pack(">q", -1), date(1969, 12, 31)),
        ("time", struct.pack(">q", 1), datetime(1970, 1, 1, 0, 0, 0, 1000, UTC)),
        ("timestamp", struct.pack(">q", -1), datetime(1969, 12, 31, 23, 59, 59, 999000, UTC)),
        ("instant", struct.pack(">qi", 1, 1999), datetime(1970, 1, 1, 0, 0, 1, 1, UTC)),
        ("localdate", struct.pack(">q", 1), date(1970, 1, 2)),
        ("localtime", struct.pack(">q", 5), 5),
        ("localdatetime", struct.pack(">qq", 1, 3000), datetime(1970, 1, 2, 0, 0, 0, 3)),
    ],
)
def test_primitives_are_read_as_pulsars_clients_write_them(
    kind: str, data: bytes, want: Any
) -> None:
    assert values(plan(kind), data) == [want]
    assert values(plan(kind), None, data, data + b"\0", b"") == [None, want, None, None]
    assert values(plan(kind, "DROPMALFORMED"), None, data, data + b"\0") == [None, want]
    with pytest.raises(MalformedValueError, match=rf"7:1:-1 of {TOPIC} cannot .*{kind}"):
        values(plan(kind, "FAILFAST"), data, data + b"\0")


def test_all_primitives_are_tested() -> None:
    [mark] = test_primitives_are_read_as_pulsars_clients_write_them.pytestmark
    assert {each[0] for each in mark.args[1]} == set(FIXED)


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)))
def test_encoded_numbers_can_be_decoded(numbers: list[int | None]) -> None:
    data = [None if each is None else struct.pack(">q", each) for each in numbers]
    assert values(plan("int64"), *data) == numbers


def test_a_day_outside_of_sparks_range_is_malformed() -> None:
    assert values(plan("localdate"), struct.pack(">q", 2**40), struct.pack(">q", 1)) == [
        None,
        date(1970, 1, 2),
    ]


@given(st.lists(st.none() | st.text(max_size=5)))
def test_encoded_texts_can_be_decoded(texts: list[str | None]) -> None:
    data = [None if each is None else each.encode() for each in texts]
    assert values(plan("string"), *data) == texts


def test_bytes_that_are_invalid_text_are_malformed() -> None:
    data = [b"a", b"\xff", None, "é".encode()]
    assert values(plan("string"), *data) == ["a", None, None, "é"]
    assert values(plan("string", "DROPMALFORMED"), *data) == ["a", None, "é"]
    with pytest.raises(MalformedValueError, match=r"7:1:-1"):
        values(plan("string", "FAILFAST"), *data)


def test_malformed_bytes_have_a_column_if_values_are_structures() -> None:
    assert [each.name for each in value_fields(plan("int32"))] == ["value"]
    assert [each.name for each in value_fields(plan_with())] == ["value"]
    for mode in ("FAILFAST", "DROPMALFORMED", "PERMISSIVE"):
        names = [each.name for each in value_fields(json_plan("a INT", mode))]
        assert names == ["a"] + ["_corrupt_record"] * (mode == "PERMISSIVE")


def test_nothing_is_decoded_if_no_field_is_selected() -> None:
    assert isinstance(values_of(json_plan("a INT"), StructType([]), TOPIC), RawValues)


# Pairs


POINT = json.dumps({"type": "record", "name": "P", "fields": [{"name": "x", "type": "int"}]})
SEPARATED = ValuePlan(
    key=ValueForm(kind="int32"), value=ValueForm(kind="avro", definition=POINT), separated=True
)
INLINE = ValuePlan(key=ValueForm(kind="string"), value=ValueForm(kind="json", definition=POINT))


def pair(key: bytes | None, value: bytes | None) -> bytes:
    halves = [(-1, b"") if each is None else (len(each), each) for each in (key, value)]
    return b"".join(struct.pack(">i", length) + each for length, each in halves)


def test_a_pair_whose_key_is_the_partition_key() -> None:
    keys = [struct.pack(">i", each) for each in (1, 2)]
    batch = decoded(SEPARATED, [b"\x02", None, b"\x04"], keys=[*keys, None])
    assert batch.to_pylist() == [
        {"key": 1, "value": {"x": 1}, "_corrupt_record": None},
        # deleted, and the key identifies the row
        {"key": 2, "value": None, "_corrupt_record": None},
        {"key": None, "value": {"x": 2}, "_corrupt_record": None},
    ]


def test_a_pair_can_be_in_one_payload() -> None:
    data = [pair(b"a", b'{"x": 1}'), pair(None, None), None, pair(b"b", None)]
    assert decoded(INLINE, data).to_pylist() == [
        {"key": "a", "value": {"x": 1}, "_corrupt_record": None},
        {"key": None, "value": None, "_corrupt_record": None},
        {"key": None, "value": None, "_corrupt_record": None},
        {"key": "b", "value": None, "_corrupt_record": None},
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"\0\0\0",
        pair(b"a", b"{}")[:-1],
        pair(b"a", b"{}") + b"\0",
        b"\xff\xff\xff\xfe" + pair(None, None)[4:],
        pair(b"\xff", b"{}"),
        pair(b"a", b"[]"),
    ],
)
def test_a_pair_with_a_malformed_half_has_neither_half(wrong: bytes) -> None:
    good = pair(b"a", b'{"x": 1}')
    rows = decoded(INLINE, [good, wrong, good]).to_pylist()
    assert rows[1] == {"key": None, "value": None, "_corrupt_record": wrong}
    assert rows[0] == rows[2] == {"key": "a", "value": {"x": 1}, "_corrupt_record": None}
    failing = ValuePlan(key=INLINE.key, value=INLINE.value, mode="FAILFAST")
    with pytest.raises(MalformedValueError, match=r"7:1:-1"):
        decoded(failing, [good, wrong])


# Names and schemas


def test_a_field_with_the_name_of_another_column_is_refused() -> None:
    fields = value_fields(json_plan("__topic STRING, id INT"))
    check_columns(fields, ["__key"])
    with pytest.raises(
        ConfigurationError, match=r"field '__topic'.*column .*'__topic'.*metadataPref"
    ):
        check_columns(fields, ["__key", "__topic"])
    with pytest.raises(ConfigurationError, match=r"_corrupt_record.*FAILFAST"):
        value_fields(json_plan("_corrupt_record STRING"))
    assert len(value_fields(json_plan("_corrupt_record STRING", "FAILFAST"))) == 1


def test_a_schema_with_not_null_is_refused() -> None:
    fields = value_fields(json_plan("id INT, s STRUCT<x: INT>"))
    inner = StructType([StructField("x", IntegerType(), False)])
    check_nullable(StructType([StructField("__topic", StringType(), False), fields[1]]), fields)
    for asked in (StructField("id", IntegerType(), False), StructField("s", inner)):
        with pytest.raises(ConfigurationError, match=f"{asked.name} .*NOT NULL"):
            check_nullable(StructType([asked]), fields)
