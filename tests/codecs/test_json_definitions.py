"""The Avro definitions that `Json` registers, compared with those of Java's `JSONSchema`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, Literal, NotRequired, TypedDict

import msgspec
import pydantic
import pytest

import pulsar_encore as encore


class Colour(Enum):
    RED = "RED"
    BLUE = "BLUE"


class Level(IntEnum):
    LOW = 1


class Words(Enum):
    SPACED = "two words"


@dataclass
class Line:
    sku: str
    parent: Line | None = None


class Typed(TypedDict):
    count: int
    label: NotRequired[str]


@dataclass
class Order:
    id: int
    small: encore.Int32
    ratio: float
    rough: encore.Float32
    paid: bool
    name: str
    raw: bytes
    colour: Colour
    level: Level
    words: Words
    lines: list[Line]
    first: Line
    prices: dict[str, float]
    typed: Typed
    kind: Literal["a", "b"]
    either: int | str
    number: int | None = None
    size: int = 3
    share: float = 0.5
    endless: float = float("inf")
    gift: bool = True
    note: str = "none"
    tags: set[str] = field(default_factory=set)


def definition(kind: Any, **options: Any) -> Any:
    info = encore.Json(kind, **options).schema_info()
    assert info.kind == "JSON"
    return json.loads(info.definition)


def nullable(*types: Any) -> dict[str, Any]:
    return {"type": ["null", *types], "default": None}


def test_fields_have_the_forms_of_java() -> None:
    got = definition(Order)
    assert (got["type"], got["name"]) == ("record", "Order")
    line = {
        "type": "record",
        "name": "Line",
        "fields": [{"name": "sku", **nullable("string")}, {"name": "parent", **nullable("Line")}],
    }
    typed = {
        "type": "record",
        "name": "Typed",
        "fields": [{"name": "count", "type": "long"}, {"name": "label", **nullable("string")}],
    }
    colour = {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}
    assert {each.pop("name"): each for each in got["fields"]} == {
        "id": {"type": "long"},
        "small": {"type": "int"},
        "ratio": {"type": "double"},
        "rough": {"type": "float"},
        "paid": {"type": "boolean"},
        "name": nullable("string"),
        "raw": nullable("bytes"),
        "colour": nullable(colour),
        "level": nullable("long"),
        "words": nullable("string"),
        "lines": nullable({"type": "array", "items": line}),
        "first": nullable("Line"),
        "prices": nullable({"type": "map", "values": "double"}),
        "typed": nullable(typed),
        "kind": nullable("string"),
        "either": nullable("long", "string"),
        "number": nullable("long"),
        "size": {"type": "long", "default": 3},
        "share": {"type": "double", "default": 0.5},
        "endless": {"type": "double"},
        "gift": {"type": "boolean", "default": True},
        "note": nullable("string"),
        "tags": nullable({"type": "array", "items": "string"}),
    }


class Model(pydantic.BaseModel):
    order_id: int = pydantic.Field(alias="orderId")
    small: encore.Int32 = pydantic.Field(default=1, ge=0)
    lines: list[Line] = []


class Struct(msgspec.Struct, rename="camel"):
    order_id: int
    small: encore.Int32 = 1
    lines: list[Line] = []


@pytest.mark.parametrize("kind", [Model, Struct])
def test_libraries_give_their_names_in_json(kind: Any) -> None:
    fields = {each["name"]: each for each in definition(kind)["fields"]}
    assert list(fields) == ["orderId", "small", "lines"]
    assert fields["orderId"] == {"name": "orderId", "type": "long"}
    assert fields["small"] == {"name": "small", "type": "int", "default": 1}
    assert fields["lines"]["type"][1]["items"]["name"] == "Line"


def test_two_classes_of_one_name_are_two_records() -> None:
    other = pydantic.create_model("Line", number=(int, 1))
    both = pydantic.create_model("Both", a=(Line, ...), b=(other, ...))
    names = [each["type"][1]["name"] for each in definition(both)["fields"]]
    assert names == ["Line", "Line_2"]


def test_a_given_definition_is_registered_as_it_is() -> None:
    own = {"type": "record", "name": "Mine", "fields": []}
    assert definition(Order, definition=own) == own
    assert definition(Order, definition=json.dumps(own)) == own
    with pytest.raises(encore.ConfigurationError, match="an Avro schema in JSON"):
        encore.Json(Order, definition="{")
    with pytest.raises(encore.ConfigurationError, match="dict or str, got int"):
        encore.Json(Order, definition=3)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (Any, r"M\.value is of type \S*Any"),
        (tuple[int, str], "which Avro cannot describe"),
        (list[int] | list[str], "a union of two lists"),
        (dict[str, Any], "which Avro cannot describe"),
    ],
)
def test_a_type_that_avro_cannot_describe_needs_a_definition(kind: Any, fault: str) -> None:
    codec = encore.Json(pydantic.create_model("M", value=(kind, ...)))
    with pytest.raises(encore.ConfigurationError, match=fault) as caught:
        codec.schema_info()
    assert "definition=" in str(caught.value)


def test_a_name_that_avro_does_not_have_needs_a_definition() -> None:
    dashed = pydantic.create_model("M", value=(int, pydantic.Field(alias="a-b")))
    with pytest.raises(encore.ConfigurationError, match="'a-b' in JSON"):
        encore.Json(dashed).schema_info()
