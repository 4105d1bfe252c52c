"""`Json` of dataclasses, TypedDicts and generic types, which this package reads and writes."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NewType, NotRequired, TypedDict
from uuid import UUID

import pytest

import pulsar_encore as encore

UID = UUID("12345678-1234-5678-1234-567812345678")
NOON = dt.datetime(2026, 1, 2, 12, 0, tzinfo=dt.UTC)
CustomerId = NewType("CustomerId", str)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1


class Shape(Enum):
    ROUND = (1, 2)


@dataclass
class Line:
    sku: str
    price: Decimal
    parts: list[Line] = field(default_factory=list)


class Box(TypedDict):
    width: int
    label: NotRequired[str]


@dataclass(frozen=True, slots=True)
class Order:
    id: int
    customer: CustomerId
    total: float
    paid: bool
    placed: dt.datetime
    day: dt.date
    time: dt.time
    uid: UUID
    colour: Colour
    level: Level
    shape: Shape
    lines: list[Line]
    box: Box
    raw: bytes
    prices: dict[str, Decimal]
    by_number: Mapping[int, str]
    by_level: dict[Level, str]
    by_colour: dict[Colour, int]
    by_uid: dict[UUID, int]
    point: tuple[int, str]
    sizes: tuple[int, ...]
    tags: frozenset[str]
    words: Sequence[str]
    kind: Literal["a", "b"]
    either: int | str
    marked: Annotated[int, "a remark"] = 5
    note: str | None = None
    anything: Any = None


ORDER = Order(
    id=1,
    customer=CustomerId("Ada"),
    total=2.5,
    paid=True,
    placed=NOON,
    day=dt.date(2026, 1, 2),
    time=dt.time(12, 30),
    uid=UID,
    colour=Colour.BLUE,
    level=Level.LOW,
    shape=Shape.ROUND,
    lines=[Line("x", Decimal("1.10"), [Line("y", Decimal(2))])],
    box={"width": 3},
    raw=b"\xff\x00",
    prices={"eur": Decimal("0.1")},
    by_number={7: "seven"},
    by_level={Level.LOW: "low"},
    by_colour={Colour.RED: 1},
    by_uid={UID: 1},
    point=(1, "one"),
    sizes=(1, 2),
    tags=frozenset({"t"}),
    words=["w"],
    kind="b",
    either="text",
    anything={"deep": [1, 2.5, None]},
)


def parsed(data: bytes) -> Any:
    return json.loads(data)


def error_of(codec: Any, value: Any) -> encore.DecodeError:
    with pytest.raises(encore.DecodeError) as caught:
        codec.decode(json.dumps(value).encode())
    return caught.value


def test_a_dataclass_is_read_as_it_was_written() -> None:
    codec = encore.Json(Order)
    data = codec.encode(ORDER)
    assert codec.decode(data) == ORDER
    written = parsed(data)
    assert written["colour"] == "blue"
    assert written["placed"] == "2026-01-02T12:00:00+00:00"
    assert written["lines"][0]["price"] == "1.10"
    assert written["raw"] == "/wA="
    assert written["shape"] == "ROUND", "a tuple has no form as a value"


def test_text_is_written_as_utf_8() -> None:
    assert encore.Json(list[str]).encode(["ä"]) == '["ä"]'.encode()


@dataclass
class Small:
    id: int
    note: str | None
    size: int = 3
    words: list[str] = field(default_factory=lambda: ["none"])


def test_unknown_fields_are_ignored() -> None:
    got = encore.Json(Small).decode(b'{"id": 1, "note": "n", "later": {"x": 1}}')
    assert got == Small(1, "n")


def test_a_missing_field_gets_its_default_or_none() -> None:
    """Java's clients leave out nulls."""
    got = encore.Json(Small).decode(b'{"id": 1}')
    assert got == Small(1, None, 3, ["none"])


def test_a_missing_field_without_a_default_is_named() -> None:
    error = error_of(encore.Json(Small), {"note": "n"})
    assert error.field == "id"
    assert error.schema == "Json(Small)"
    assert error.reason == "it is missing"
    assert error.payload == b'{"note": "n"}'
    assert "field id: it is missing" in str(error)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"lines": [{"sku": "x", "price": "1"}, {"sku": "y"}]}, "lines[1].price"),
        ({"lines": [{"sku": 1, "price": "1"}]}, "lines[0].sku"),
        ({"lines": [], "prices": {"eur": "x"}}, "prices['eur']"),
        ({"lines": {}}, "lines"),
        ({"lines": [{"sku": "x", "price": "1", "parts": [3]}]}, "lines[0].parts[0]"),
        ([], ""),
        (None, ""),
    ],
)
def test_the_error_has_the_path_of_the_field(value: Any, path: str) -> None:
    assert error_of(encore.Json(Basket), value).field == path


@dataclass
class Basket:
    lines: list[Line]
    prices: dict[str, Decimal] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, "1"),
        (int, 1.0),
        (int, True),
        (float, "1"),
        (float, True),
        (str, 1),
        (bool, 1),
        (bytes, "no base64!"),
        (Decimal, "much"),
        (Decimal, None),
        (UUID, "1234"),
        (dt.datetime, "yesterday"),
        (dt.datetime, 10**18),
        (dt.date, 1),
        (dt.time, "25:00"),
        (Colour, "green"),
        (Colour, [1]),
        (Level, 2),
        (Level, True),
        (tuple[int, int], [1]),
    ],
)
def test_values_are_not_converted_between_types(kind: Any, value: Any) -> None:
    error_of(encore.Json(list[kind]), [value])


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (float, 1, 1.0),
        (Decimal, 1, Decimal(1)),
        (Decimal, 0.1, Decimal("0.1")),
        (dt.datetime, int(NOON.timestamp() * 1000), NOON),
        (dt.datetime, "2026-01-02T12:00:00Z", NOON),
        (Colour, "RED", Colour.RED),
    ],
)
def test_the_forms_of_java_are_read(kind: Any, value: Any, expected: Any) -> None:
    [got] = encore.Json(list[kind]).decode(json.dumps([value]).encode())
    assert got == expected
    assert type(got) is type(expected)


def test_a_decimal_keeps_the_digits_of_a_number() -> None:
    text = b"[1.00000000000000000001]"
    assert encore.Json(list[Decimal]).decode(text) == [Decimal("1.00000000000000000001")]


def test_other_fields_get_floats_beside_a_decimal() -> None:
    got = encore.Json(Mixed).decode(b'{"exact": 1.5, "rough": 1.5, "anything": [{"x": 1.5}]}')
    assert got == Mixed(Decimal("1.5"), 1.5, [{"x": 1.5}])
    assert [type(each) for each in (got.rough, got.anything[0]["x"])] == [float, float]


@dataclass
class Mixed:
    exact: Decimal
    rough: float
    anything: Any


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[NaN]", b"[" * 100_000, b"1 2"])
def test_a_payload_that_is_not_json_is_a_decode_error(data: bytes) -> None:
    with pytest.raises(encore.DecodeError) as caught:
        encore.Json(list[float]).decode(data)
    assert caught.value.field == ""
    assert caught.value.payload == data[:64]
    assert caught.value.__cause__ is not None


def test_an_error_of_post_init_is_a_decode_error() -> None:
    error = error_of(encore.Json(Positive), {"value": -1})
    assert "below zero" in str(error)
    assert isinstance(error.__cause__, ValueError)


@dataclass
class Positive:
    value: int
    double: int = field(init=False)

    def __post_init__(self) -> None:
        if self.value < 0:
            raise ValueError("below zero")
        self.double = self.value * 2


def test_a_field_that_the_constructor_does_not_take_is_computed() -> None:
    codec = encore.Json(Positive)
    data = codec.encode(Positive(2))
    assert parsed(data) == {"value": 2, "double": 4}
    assert codec.decode(b'{"value": 2, "double": 9}') == Positive(2)


def test_a_typed_dict_keeps_its_declared_keys_only() -> None:
    codec = encore.Json(Box)
    assert codec.decode(b'{"width": 1, "other": 2}') == {"width": 1}
    assert error_of(codec, {"label": "x"}).field == "width"
    with pytest.raises(TypeError, match="no key 'other'"):
        codec.encode({"width": 1, "other": 2})  # type: ignore[typeddict-unknown-key]


def test_a_value_of_another_type_is_not_written() -> None:
    order = Small("one", None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="field id: it must be int, not str"):
        encore.Json(Small).encode(order)
    with pytest.raises(TypeError, match="it must be Small, not dict"):
        encore.Json(Small).encode({"id": 1})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="date, not datetime"):
        encore.Json(list[dt.date]).encode([NOON])


def test_a_type_without_a_form_in_json_is_refused() -> None:
    with pytest.raises(encore.ConfigurationError, match=r"Odd\.value is of type complex"):
        encore.Json(Odd)
    with pytest.raises(encore.ConfigurationError, match="keys of type float"):
        encore.Json(dict[float, int])
    with pytest.raises(encore.ConfigurationError, match="needs a class"):
        encore.Json(Small(1, None))  # type: ignore[arg-type]
    with pytest.raises(encore.ConfigurationError, match="null must be True or False"):
        encore.Json(Small, null="yes")  # type: ignore[call-overload]


@dataclass
class Odd:
    value: complex


def test_an_annotation_that_cannot_be_found_is_refused() -> None:
    @dataclass
    class Outer:
        inner: Inner  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(encore.ConfigurationError, match="at the top level of a module"):
        encore.Json(Outer)


def test_a_record_of_pulsar_client_is_refused() -> None:
    class Old(encore.schema.Record):  # type: ignore[misc]
        id = encore.schema.Integer()

    with pytest.raises(encore.ConfigurationError, match=r"schema\.JsonSchema\(Old\)"):
        encore.Json(Old)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, "4111-1111"),
        (dt.date, "4111-1111"),
        (Decimal, "4111-1111"),
        (Colour, "4111-1111"),
        (dict[int, str], {"4111-1111": ""}),
        (dict[Colour, str], {"4111-1111": ""}),
        (Literal["a"], "4111-1111"),
        (int | dt.date, "4111-1111"),
    ],
)
def test_the_text_of_an_error_has_the_size_of_the_payload_and_nothing_of_it(
    kind: Any, value: Any
) -> None:
    data = json.dumps(value).encode()
    with pytest.raises(encore.DecodeError) as caught:
        encore.Json(kind).decode(data)
    assert f"payload of {len(data)} bytes does not decode as Json(" in str(caught.value)
    assert "4111" not in str(caught.value)
    assert caught.value.payload == data
