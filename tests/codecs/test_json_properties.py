"""Properties of `Json`: values survive, and a wrong payload is a `DecodeError` whatever it is."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pulsar_encore as encore


class Colour(Enum):
    RED = "red"
    BLUE = "BLUE"


class Box(TypedDict):
    width: int


@dataclass
class Line:
    sku: str
    price: Decimal
    child: Line | None


@dataclass
class Order:
    number: int
    ratio: float
    paid: bool
    raw: bytes
    uid: UUID
    placed: dt.datetime
    day: dt.date
    time: dt.time
    colour: Colour
    line: Line
    box: Box
    words: list[str]
    prices: dict[str, Decimal]
    by_number: dict[int, float]
    pair: tuple[int, str]
    numbers: frozenset[int]
    either: int | str | None


class Model(pydantic.BaseModel):
    number: int
    line: Line


class Struct(msgspec.Struct):
    number: int
    line: Line


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
LINES = st.recursive(
    st.builds(Line, TEXTS, DECIMALS, st.none()),
    lambda inner: st.builds(Line, TEXTS, DECIMALS, inner),
    max_leaves=4,
)
ORDERS = st.builds(
    Order,
    number=st.integers(-(2**63), 2**63 - 1),
    ratio=FLOATS,
    paid=st.booleans(),
    raw=st.binary(),
    uid=st.uuids(),
    placed=st.datetimes(timezones=st.none() | st.just(dt.UTC)),
    day=st.dates(),
    time=st.times(),
    colour=st.sampled_from(Colour),
    line=LINES,
    box=st.fixed_dictionaries({"width": st.integers()}),
    words=st.lists(TEXTS),
    prices=st.dictionaries(TEXTS, DECIMALS),
    by_number=st.dictionaries(st.integers(), FLOATS),
    pair=st.tuples(st.integers(), TEXTS),
    numbers=st.frozensets(st.integers()),
    either=st.none() | st.integers() | TEXTS,
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=8,
)
CODECS: list[Any] = [encore.Json(each) for each in (Order, Box, Model, Struct, dict[str, Line])]


@given(ORDERS)
def test_a_value_is_read_as_it_was_written(order: Order) -> None:
    codec = encore.Json(Order)
    assert codec.decode(codec.encode(order)) == order


@st.composite
def nearly(draw: st.DrawFn) -> bytes:
    """A written order with some fields replaced or left out."""
    plain = json.loads(encore.Json(Order).encode(draw(ORDERS)))
    for name in draw(st.lists(st.sampled_from(sorted(plain)), max_size=3)):
        if draw(st.booleans()):
            plain[name] = draw(VALUES)
        else:
            plain.pop(name, None)
    return json.dumps(plain).encode()


@settings(max_examples=60)
@given(
    codec=st.sampled_from(CODECS),
    data=st.binary() | st.builds(lambda value: json.dumps(value).encode(), VALUES) | nearly(),
)
def test_a_payload_decodes_or_is_a_decode_error(codec: Any, data: bytes) -> None:
    with contextlib.suppress(encore.DecodeError):
        value = codec.decode(data)
        with contextlib.suppress(TypeError, ValueError):
            assert codec.decode(codec.encode(value)) == value


@pytest.mark.parametrize("text", ["1" * 400, "1" * 5000, "1e999", "-1E+400"])
@pytest.mark.parametrize("kind", [float, Decimal, int, dt.datetime, float | Decimal])
def test_a_number_of_any_size_decodes_or_is_a_decode_error(text: str, kind: Any) -> None:
    with contextlib.suppress(encore.DecodeError):
        encore.Json(list[kind]).decode(f"[{text}]".encode())


def test_a_validator_of_the_application_may_raise_anything() -> None:
    class Checked(pydantic.BaseModel):
        number: int

        @pydantic.field_validator("number")
        @classmethod
        def check(cls, number: int) -> int:
            raise KeyError(number)

    with pytest.raises(encore.DecodeError, match="KeyError: 1") as caught:
        encore.Json(Checked).decode(b'{"number": 1}')
    assert isinstance(caught.value.__cause__, KeyError)
