"""Values of an older schema, read with the latest one: nulls and errors."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from values_kit import avro_plan, decoded

from pulsar_encore.spark import MalformedValueError
from pulsar_encore.spark.reader.values.value_plan import ValueForm, ValuePlan

NULLABLE = ["null", "string"]
LAST = ["string", "null"]


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    """Return a record schema. A field is (name, type) or (name, type, default)."""
    listed = [dict(zip(("name", "type", "default"), each, strict=False)) for each in fields]
    return {"type": "record", "name": name, "fields": listed, **more}


def written(schema: Any, value: Any) -> bytes:
    buffer = io.BytesIO()
    bare = json.loads(json.dumps(schema).replace("logicalType", "ignored"))
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(bare), value)
    return buffer.getvalue()


def read(
    before: Any, after: Any, *values: Any, only: list[str] | None = None
) -> list[dict[str, Any]]:
    """Read values of the schema `before` with the schema `after`."""
    rows: list[dict[str, Any]] = decoded(
        avro_plan(json.dumps(after)),
        [written(before, each) for each in values],
        only=only,
        versions=[0] * len(values),
        writers={0: json.dumps(before)},
    ).to_pylist()
    return rows


def inside(schema: Any, wrap: str) -> Any:
    """Return a type at each place where the type of a field can contain it."""
    if wrap == "nullable":
        return ["null", schema]
    if wrap == "array":
        return {"type": "array", "items": schema}
    if wrap == "map":
        return {"type": "map", "values": schema}
    if wrap == "record":
        return record(("in", schema), name="Wrap")
    return schema


def value_inside(value: Any, wrap: str) -> Any:
    return {"array": [value], "map": {"k": value}, "record": {"in": value}}.get(wrap, value)


def row_inside(row: Any, wrap: str) -> Any:
    return {"array": [row], "map": [("k", row)], "record": {"in": row}}.get(wrap, row)


@pytest.mark.parametrize("kind", [NULLABLE, LAST, "null", ["long", "null"]])
def test_a_nullable_field_that_the_writer_lacks_is_null(kind: Any) -> None:
    before = record(("id", "long"))
    after = record(("note", kind), ("id", "long"))
    rows = read(before, after, {"id": 1}, {"id": 2})
    assert rows == [{"note": None, "id": each, "_corrupt_record": None} for each in (1, 2)]


@pytest.mark.parametrize("wrap", ["plain", "nullable", "array", "map", "record"])
def test_a_nullable_field_that_a_nested_record_lacks_is_null(wrap: str) -> None:
    old, new = record(("z", "int"), name="In"), record(("z", "int"), ("note", LAST), name="In")
    before, after = (record(("id", "long"), ("a", inside(each, wrap))) for each in (old, new))
    [row] = read(before, after, {"id": 1, "a": value_inside({"z": 3}, wrap)})
    assert row == {
        "id": 1,
        "a": row_inside({"z": 3, "note": None}, wrap),
        "_corrupt_record": None,
    }


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}


@pytest.mark.parametrize(
    ("kind", "default", "want"),
    [
        (["string", "null"], "x", "x"),
        (NULLABLE, "x", "x"),  # Avro 1.12 and later allow a default of any type of the union.
        ("bytes", "\u00ff", b"\xff"),
        (DECIMAL, "\u0001\u0000", Decimal("2.56")),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            5,
            datetime(1970, 1, 1, 0, 0, 0, 5000, UTC),
        ),
        ({"type": "array", "items": "int"}, [1], [1]),
        ({"type": "map", "values": "int"}, {"k": 1}, [("k", 1)]),
        (record(("z", "int"), ("y", NULLABLE), name="In"), {"z": 1}, {"z": 1, "y": None}),
        (["string", "long"], "x", {"member0": "x", "member1": None}),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "A", "A"),
        ("double", 1, 1.0),
    ],
)
def test_the_default_is_used_if_there_is_one(kind: Any, default: Any, want: Any) -> None:
    [row] = read(record(("id", "long")), record(("id", "long"), ("a", kind, default)), {"id": 1})
    assert row == {"id": 1, "a": want, "_corrupt_record": None}


@pytest.mark.parametrize(
    "kind", ["long", record(("z", "int"), name="In"), {"type": "array", "items": "int"}]
)
def test_a_missing_field_that_is_not_nullable_and_has_no_default_is_an_error(kind: Any) -> None:
    before, after = record(("id", "long")), record(("id", "long"), ("a", kind))
    [row] = read(before, after, {"id": 1})
    assert row == {"id": None, "a": None, "_corrupt_record": written(before, {"id": 1})}
    # A query without that field reads the other fields.
    assert read(before, after, {"id": 1}, only=["id"]) == [{"id": 1}]


def test_the_error_names_the_field() -> None:
    before, after = record(("a", record(name="In"))), record(("a", record(("z", "int"), name="In")))
    with pytest.raises(MalformedValueError, match=r"a\.z is not in the schema it was written with"):
        decoded(
            avro_plan(json.dumps(after), "FAILFAST"),
            [written(before, {"a": {}})],
            versions=[0],
            writers={0: json.dumps(before)},
        )


def test_a_written_null_is_null_even_if_the_new_type_is_not_nullable() -> None:
    before = record(("id", "long"), ("a", NULLABLE), ("b", {"type": "array", "items": NULLABLE}))
    after = record(("a", "string"), ("id", "long"), ("b", {"type": "array", "items": "string"}))
    rows = read(before, after, {"id": 1, "a": None, "b": [None]}, {"id": 2, "a": "x", "b": ["y"]})
    assert rows == [
        {"a": None, "id": 1, "b": [None], "_corrupt_record": None},
        {"a": "x", "id": 2, "b": ["y"], "_corrupt_record": None},
    ]


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


@pytest.mark.parametrize("wrap", ["plain", "nullable", "array", "map", "record"])
@pytest.mark.parametrize(
    ("after", "want"), [(enum("ON", "OFF"), "OLD"), (enum("ON", "OFF", default="OFF"), "OFF")]
)
def test_a_symbol_that_the_enum_lacks_is_kept_or_becomes_the_default(
    wrap: str, after: Any, want: str
) -> None:
    before = enum("ON", "OFF", "OLD")
    old, new = record(("e", inside(before, wrap))), record(("e", inside(after, wrap)))
    rows = read(old, new, *({"e": value_inside(each, wrap)} for each in ("ON", "OLD")))
    assert [row["e"] for row in rows] == [row_inside(each, wrap) for each in ("ON", want)]
    assert {row["_corrupt_record"] for row in rows} == {None}


MS, US = ({"type": "long", "logicalType": f"timestamp-{each}"} for each in ("millis", "micros"))
WHEN = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("before", "after", "value", "want"),
    [
        ("int", "double", 3, 3.0),
        ("long", "float", 2**24 + 1, float(2**24)),
        ("string", "bytes", "é", "é".encode()),
        ("bytes", "string", b"x", "x"),
        ("long", "int", 7, 7),
        ("double", "long", 7.0, 7),
        ("double", "float", 0.5, 0.5),
        ("double", "float", 2.0**128 - 2.0**104, 2.0**128 - 2.0**104),
        ("double", "float", float("-inf"), float("-inf")),
        (enum("A"), "string", "A", "A"),
        ("string", enum("A"), "B", "B"),
        ({"type": "fixed", "name": "F", "size": 2}, "bytes", b"ab", b"ab"),
        (MS, US, 1000, WHEN),
        (US, MS, 1_000_000, WHEN),
        ("long", MS, 1000, WHEN),
        ({"type": "int", "logicalType": "date"}, MS, 0, datetime(1970, 1, 1, tzinfo=UTC)),
        ({**DECIMAL, "scale": 1}, DECIMAL, b"\x0f", Decimal("1.50")),
        (["null", "string", "long"], ["null", "string"], "x", "x"),
        ("long", ["null", "double", "string"], 2, {"member0": 2.0, "member1": None}),
        (["int", "string"], ["string", "long"], 5, {"member0": None, "member1": 5}),
        (
            record(("z", "int"), name="a.Old"),
            record(("z", "long"), name="b.New"),
            {"z": 1},
            {"z": 1},
        ),
    ],
)
def test_a_value_of_a_changed_type_is_converted(
    before: Any, after: Any, value: Any, want: Any
) -> None:
    old, new = record(("id", "long"), ("a", before)), record(("a", after), ("id", "long"))
    [row] = read(old, new, {"id": 1, "a": value})
    assert row == {"id": 1, "a": want, "_corrupt_record": None}


@pytest.mark.parametrize(
    ("before", "after", "value"),
    [
        ("long", "int", 2**40),
        ("double", "long", 0.5),
        ("double", "long", float("nan")),
        ("double", "float", 1e300),
        ("double", "float", 2.0**103 - 2.0**128),
        ("string", "long", "1"),
        ("boolean", "int", True),
        ("bytes", "string", b"\xff"),
        (["null", "string", "long"], ["null", "string"], 1),
        ("string", ["long", "boolean"], "x"),
        ("long", DECIMAL, 1),
        (US, {"type": "int", "logicalType": "date"}, 2**40),
    ],
)
def test_a_value_that_does_not_fit_the_new_type_is_an_error_of_its_row_only(
    before: Any, after: Any, value: Any
) -> None:
    old = record(("id", "long"), ("a", ["null", before] if type(before) is not list else before))
    new = record(("a", after), ("id", "long"))
    rows = read(old, new, {"id": 1, "a": value}, {"id": 2, "a": None})
    assert [row["id"] for row in rows] == [None, 2]
    assert rows[0]["_corrupt_record"] is not None


def test_an_alias_matches_the_name_that_the_writer_used() -> None:
    after = record(("id", "long"), ("b", NULLABLE))
    after["fields"][1]["aliases"] = ["a"]
    [row] = read(record(("a", "string"), ("id", "long")), after, {"a": "x", "id": 1})
    assert row == {"id": 1, "b": "x", "_corrupt_record": None}


def test_keys_and_values_of_a_pair_are_evolved() -> None:
    old, new = record(("k", "int")), record(("k", "int"), ("note", LAST))
    form = ValueForm(kind="avro", definition=json.dumps(new))
    plan = ValuePlan(value=form, key=form, separated=True)
    batch = decoded(
        plan,
        [written(old, {"k": 2})],
        versions=[0],
        writers={0: json.dumps(old)},
        keys=[written(old, {"k": 1})],
    )
    assert batch.to_pylist() == [
        {"key": {"k": 1, "note": None}, "value": {"k": 2, "note": None}, "_corrupt_record": None}
    ]


def test_fields_that_json_lacks_are_null() -> None:
    definition = record(("id", "long"), ("note", LAST), ("e", enum("A")))
    plan = ValuePlan(value=ValueForm(kind="json", definition=json.dumps(definition)))
    batch = decoded(plan, [b'{"id": 1}', b'{"id": 2, "e": "OLD"}'])
    assert batch.to_pylist() == [
        {"id": 1, "note": None, "e": None, "_corrupt_record": None},
        {"id": 2, "note": None, "e": "OLD", "_corrupt_record": None},
    ]
