"""JSON values: values that fit the schema, and errors for values that do not."""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from values_kit import TOPIC, decoded, json_plan

from pulsar_encore.errors import ConfigurationError
from pulsar_encore.spark import MalformedValueError
from pulsar_encore.spark.reader.values.value_plan import ValueForm, ValuePlan

ORDER = "id BIGINT, name STRING, price DOUBLE, at STRUCT<x: INT, tags: ARRAY<STRING>>, ok BOOLEAN"


def rows(ddl: str, *values: bytes | None, mode: str = "PERMISSIVE") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = decoded(json_plan(ddl, mode), values).to_pylist()
    return found


def alone(ddl: str, value: bytes) -> Any:
    """Return the only field of the row, or "corrupt"."""
    [row] = rows(ddl, value)
    (found, broken) = row.values()
    assert broken is None or (broken == value and found is None)
    return found if broken is None else "corrupt"


def test_fields_are_columns() -> None:
    value = {"id": 2**53 + 1, "name": "é", "price": 1, "at": {"x": 1, "tags": ["a", None]}}
    [row, empty] = rows(ORDER, json.dumps(value | {"more": [{}]}).encode(), b"{}")
    assert row == {**value, "price": 1.0, "ok": None, "_corrupt_record": None}
    assert set(empty.values()) == {None}


def test_a_message_without_a_value_has_nulls_and_is_not_malformed() -> None:
    found = rows(ORDER, None, b'{"id": 1}', None, b"null")
    assert [row["id"] for row in found] == [None, 1, None, None]
    assert [row["_corrupt_record"] for row in found] == [None] * 4
    assert rows(ORDER, None, mode="FAILFAST") == [
        dict.fromkeys(rows(ORDER, None, mode="FAILFAST")[0])
    ]
    assert len(rows(ORDER, None, None, mode="DROPMALFORMED")) == 2


def some(count: int) -> list[bytes]:
    """Return values written over several lines, like Python's JsonSchema does."""
    return [json.dumps({"id": each}, indent=True).encode() for each in range(count)]


@pytest.mark.parametrize(
    "wrong",
    [
        b'{"id": 1',
        b'{"id": "x"}',
        b"",
        b"[]",
        b"\xff",
        b'{"id": 1.5}',
        b'{"s": "\xff"}',
        b'{"more": "\xff"}',
    ],
)
def test_a_malformed_value_in_a_block_does_not_affect_the_others(wrong: bytes) -> None:
    values: list[bytes | None] = [*some(1500)]
    values[17], values[1060], values[1061], values[3] = wrong, wrong, None, None
    found = rows("id INT, s STRING", *values)
    want = [None if at in (3, 17, 1060, 1061) else at for at in range(1500)]
    assert [row["id"] for row in found] == want
    assert [at for at, row in enumerate(found) if row["_corrupt_record"] is not None] == [17, 1060]
    assert found[1060]["_corrupt_record"] == wrong
    kept = rows("id INT, s STRING", *values, mode="DROPMALFORMED")
    assert [row["id"] for row in kept] == [
        each for at, each in enumerate(want) if at not in (17, 1060)
    ]


def test_failfast_names_topic_and_message() -> None:
    with pytest.raises(MalformedValueError) as caught:
        rows("id INT", *some(20), b'{"id": "x"}', *some(20), mode="FAILFAST")
    assert TOPIC in str(caught.value)
    assert "7:20:-1" in str(caught.value)
    assert "FAILFAST" in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        [b'{"id":1}{"id":2}', b" "],
        [b'{"id":1}{"id":2}', b'{"id":3'],
        [b'{"id":1}null', b'{"id":2}'],
        [b'{"id":1}null{"id":2}', b'{"id":3}'],
        [b"null", b"{}"],
        [b'{"s":"', b'"}'],
        [b'{"s":"}', b'{"}'],
        [b'{"id":[{}', b"{}]}"],
        [b'{"id":1},{"id":2}', b'{"id":3}'],
    ],
)
def test_values_that_are_only_valid_when_joined_are_malformed(values: list[bytes]) -> None:
    together = rows("id INT, s STRING", *values)
    assert together == [row for each in values for row in rows("id INT, s STRING", each)]
    assert together[0]["_corrupt_record"] is not None or values[0] == b"null"


@pytest.mark.parametrize(
    ("kind", "value", "want"),
    [
        ("INT", "2147483647", 2**31 - 1),
        ("INT", "2147483648", "corrupt"),
        ("TINYINT", "-129", "corrupt"),
        ("SMALLINT", "-32768", -32768),
        ("BIGINT", "9223372036854775807", 2**63 - 1),
        ("BIGINT", "9223372036854775808", "corrupt"),
        ("BIGINT", "1.0", "corrupt"),
        ("BIGINT", "1e3", "corrupt"),
        ("BIGINT", "true", "corrupt"),
        ("BIGINT", '"1"', "corrupt"),
        ("BIGINT", "null", None),
        ("DOUBLE", "12345678901234567890123", 12345678901234567890123.0),
        ("DOUBLE", "1", 1.0),
        ("DOUBLE", '"1"', "corrupt"),
        ("FLOAT", "0.5", 0.5),
        ("BOOLEAN", "true", True),
        ("BOOLEAN", "1", "corrupt"),
        ("STRING", '"\\u0000\\ud83d\\ude00"', "\0\U0001f600"),
        ("STRING", '"\\ud83d"', "corrupt"),
        ("STRING", "1", "corrupt"),
        ("BINARY", json.dumps(base64.b64encode(b"\x00\xff").decode()), b"\x00\xff"),
        ("BINARY", '"?"', "corrupt"),
        ("DATE", '"2024-02-29"', date(2024, 2, 29)),
        ("DATE", '"2023-02-29"', "corrupt"),
        ("DATE", "1", date(1970, 1, 2)),
        ("TIMESTAMP", '"2024-01-01T01:00:00.000001+01:00"', datetime(2024, 1, 1, 0, 0, 0, 1, UTC)),
        ("TIMESTAMP", '"2024-01-01T00:00:00"', datetime(2024, 1, 1, tzinfo=UTC)),
        ("TIMESTAMP", "1", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        ("TIMESTAMP", "9223372036854775807", "corrupt"),
        ("TIMESTAMP_NTZ", '"2024-01-01T00:00:00"', datetime(2024, 1, 1)),
        ("TIMESTAMP_NTZ", '"2024-01-01T00:00:00Z"', "corrupt"),
        ("DECIMAL(4,2)", "12.34", Decimal("12.34")),
        ("DECIMAL(4,2)", '"12.3"', Decimal("12.30")),
        ("DECIMAL(4,2)", "12.345", "corrupt"),
        ("DECIMAL(4,2)", "12.340", Decimal("12.34")),
        ("DECIMAL(4,2)", "0.000", Decimal("0.00")),
        ("DECIMAL(4,2)", "0e5", Decimal("0.00")),
        ("DECIMAL(4,2)", "123", "corrupt"),
        ("DECIMAL(4,2)", "1e1", Decimal("10.00")),
        ("DECIMAL(4,2)", "NaN", "corrupt"),
        ("DECIMAL(38,0)", "9" * 38, Decimal("9" * 38)),
        ("MAP<STRING, INT>", '{"a": 1, "b": null}', [("a", 1), ("b", None)]),
        ("MAP<STRING, INT>", "[]", "corrupt"),
        ("ARRAY<ARRAY<INT>>", "[[1], null, []]", [[1], None, []]),
        ("ARRAY<INT>", '[1, "x"]', "corrupt"),
        ("STRUCT<m: MAP<STRING, DATE>>", '{"m": {"a": 0}}', {"m": [("a", date(1970, 1, 1))]}),
        ("STRUCT<x: INT>", "[]", "corrupt"),
    ],
)
def test_each_type_accepts_fitting_values(kind: str, value: str, want: Any) -> None:
    assert alone(f"v {kind}", b'{"v": %s}' % value.encode()) == want
    # Single values, values beside a map and values with neighbours give the same result.
    [row] = rows(f"v {kind}, m MAP<STRING, INT>", b'{"v": %s}' % value.encode())
    assert (row["v"] if row["_corrupt_record"] is None else "corrupt") == want


def test_deeply_nested_values_do_not_overflow_the_stack() -> None:
    for ddl in ("id INT", "id INT, m MAP<STRING, INT>"):
        deep = b'{"id": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
        assert [row["id"] for row in rows(ddl, b'{"id": 1}', deep)] == [1, None]


_leaf = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**33), 2**33),
    st.floats(allow_nan=False, allow_infinity=False, width=16),
    st.text(max_size=3),
)
_any = st.recursive(
    _leaf,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["x", "tags", "y"]), inner, max_size=3)
    ),
    max_leaves=4,
)
_fitting = st.fixed_dictionaries(
    {},
    optional={
        "id": st.none() | st.integers(-(2**63), 2**63 - 1),
        "name": st.none() | st.text(max_size=5),
        "price": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "ok": st.none() | st.booleans(),
        "at": st.none()
        | st.fixed_dictionaries(
            {
                "x": st.none() | st.integers(-(2**31), 2**31 - 1),
                "tags": st.none() | st.lists(st.none() | st.text(max_size=3), max_size=3),
            }
        ),
    },
)


@given(st.lists(st.none() | _fitting, max_size=40))
def test_encoded_values_can_be_decoded(values: list[dict[str, Any] | None]) -> None:
    data = [None if each is None else json.dumps(each).encode() for each in values]
    nothing = dict.fromkeys(("id", "name", "price", "at", "ok", "_corrupt_record"))
    assert rows(ORDER, *data) == [{**nothing, **(each or {})} for each in values]


@given(
    st.lists(
        st.one_of(
            _fitting.map(lambda each: json.dumps(each).encode()),
            st.dictionaries(
                st.sampled_from(["id", "name", "price", "at", "ok", "more"]), _any, max_size=4
            ).map(lambda each: json.dumps(each, indent=1).encode()),
            st.binary(max_size=6),
            st.text('{}[],:"\\ \n1nul', max_size=8).map(str.encode),
        ),
        max_size=40,
    )
)
def test_the_result_of_a_value_does_not_depend_on_its_neighbours(data: list[bytes]) -> None:
    together = rows(ORDER, *data)
    assert together == [row for each in data for row in rows(ORDER, each)]
    # A map is never parsed in blocks.
    singly = rows(ORDER + ", m MAP<STRING, INT>", *data)
    assert together == [{key: row[key] for key in together[0]} for row in singly]


def test_only_selected_fields_must_fit() -> None:
    data = [b'{"id": 1, "name": 5}', b'{"id": 2, "name": "x"}', b"nothing"]
    found = decoded(json_plan("id INT, name STRING"), data, only=["id"]).to_pylist()
    assert found == [{"id": 1}, {"id": 2}, {"id": None}]
    broken = decoded(json_plan("id INT"), data, only=["_corrupt_record"]).to_pylist()
    assert [row["_corrupt_record"] for row in broken] == [None, None, b"nothing"]


def registered(fields: str) -> ValuePlan:
    definition = f'{{"type": "record", "name": "R", "fields": [{fields}]}}'
    return ValuePlan(value=ValueForm(kind="json", definition=definition))


def test_times_have_the_unit_of_the_registered_schema() -> None:
    plan = registered(
        """{"name": "ms", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "us", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "all", "type": {"type": "array", "items":
            {"type": "long", "logicalType": "local-timestamp-millis"}}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}}"""
    )
    values = [
        b'{"ms": 1, "us": 1, "all": [1], "day": 1}',
        b'{"ms": "1970-01-01T00:00:00.001Z", "us": null, "all": [], "day": "1970-01-02"}',
    ]
    ms, us = datetime(1970, 1, 1, 0, 0, 0, 1000, UTC), datetime(1970, 1, 1, 0, 0, 0, 1, UTC)
    for found in (decoded(plan, values), *(decoded(plan, [each]) for each in values)):
        for row in found.to_pylist():
            assert (row["ms"], row["day"]) == (ms, date(1970, 1, 2))
            assert row["us"] in (us, None)
            assert row["all"] in ([ms.replace(tzinfo=None)], [])
            assert row["_corrupt_record"] is None
    [wrong] = decoded(plan, [b'{"ms": 9223372036854775807}']).to_pylist()
    assert wrong["_corrupt_record"] is not None


def test_unions_and_decimals_of_registered_schemas_are_read() -> None:
    plan = registered(
        """{"name": "u", "type": ["null", "long", "string"]},
        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4,
            "scale": 2}},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A"]}}"""
    )
    found = decoded(plan, [b'{"u": 1, "d": 1.5, "e": "A"}', b'{"u": "x"}', b'{"u": []}'])
    assert [row["u"] for row in found.to_pylist()] == [
        {"member0": 1, "member1": None},
        {"member0": None, "member1": "x"},
        None,
    ]
    assert found.to_pylist()[0]["d"] == Decimal("1.50")
    assert found.to_pylist()[2]["_corrupt_record"] == b'{"u": []}'


@pytest.mark.parametrize(
    ("ddl", "word"),
    [
        ("", "early"),
        ("id", "early"),
        ("id INTT", "did you mean"),
        ("id INT,", "early"),
        ("id INT name STRING", "too much"),
        ("id INT, id STRING", "twice"),
        ("m MAP<INT, INT>", "keys"),
        ("d DECIMAL(39)", "38"),
        ("s STRUCT<x INT", "missing"),
        ("id INT; x INT", "no part"),
        ("v VARCHAR(3)", "VARCHAR"),
        ("< INT", "no name"),
        ('{"type": "structs"}', "StructType"),
    ],
)
def test_the_error_for_an_invalid_schema_says_why(ddl: str, word: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        json_plan(ddl)
    assert "valueSchema" in str(caught.value)
    assert word.lower() in str(caught.value).lower()


def test_all_spellings_of_ddl_types_are_accepted() -> None:
    ddl = "`a b``c`: struct<x:int,y:array<map<string,decimal(3)>>>, id Long NOT NULL COMMENT 'x, y'"
    plan = json_plan(ddl)
    assert plan == json_plan(f"STRUCT<{ddl}>")
    assert plan == json_plan(plan.value.fields)
    [row] = decoded(plan, [b'{"a b`c": {"x": 1, "y": [{"k": 5}]}, "id": 7}']).to_pylist()
    assert row["a b`c"] == {"x": 1, "y": [[("k", Decimal(5))]]}
    assert row["id"] == 7
