"""`Json` of pydantic models and msgspec Structs, which their libraries read and write."""

from __future__ import annotations

import datetime as dt
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

import msgspec
import pydantic
import pytest

import pulsar_encore as encore

V = TypeVar("V")


class ModelLine(pydantic.BaseModel):
    sku: str
    price: float = pydantic.Field(gt=0)


class Model(pydantic.BaseModel):
    id: int
    placed: dt.datetime | None = None
    order_lines: list[ModelLine] = pydantic.Field(default=[], alias="orderLines")


class Wrapped(pydantic.BaseModel, Generic[V]):
    value: V


@pydantic.dataclasses.dataclass
class Validated:
    id: int


class StructLine(msgspec.Struct):
    sku: str


class Struct(msgspec.Struct, rename="camel"):
    id: int
    order_lines: list[StructLine] = []


@dataclass
class Holder:
    model: ModelLine
    struct: StructLine


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Model, Model(id=1, orderLines=[ModelLine(sku="x", price=2)])),
        (Wrapped[int], Wrapped[int](value=3)),
        (Validated, Validated(id=1)),
        (Struct, Struct(id=1, order_lines=[StructLine("x")])),
        (Holder, Holder(ModelLine(sku="x", price=1), StructLine("y"))),
        (list[Model], [Model(id=1)]),
        (dict[str, Struct], {"a": Struct(id=2)}),
    ],
)
def test_an_object_is_read_as_it_was_written(kind: Any, value: Any) -> None:
    codec = encore.Json(kind)
    assert codec.decode(codec.encode(value)) == value


def test_names_in_json_are_those_of_the_library() -> None:
    assert b'"orderLines"' in encore.Json(Model).encode(Model(id=1))
    assert b'"orderLines"' in encore.Json(Struct).encode(Struct(id=1))


@pytest.mark.parametrize(
    ("kind", "data", "path"),
    [
        (Model, b'{"id": 1, "orderLines": [{"sku": "x", "price": -1}]}', "orderLines[0].price"),
        (Model, b"{}", "id"),
        (Model, b"{", ""),
        (Model, b"", ""),
        (Validated, b'{"id": "x"}', "id"),
        (Struct, b'{"id": 1, "orderLines": [{"sku": 1}]}', "orderLines[0].sku"),
        (Struct, b"{", ""),
        (Struct, b"[]", ""),
        (Holder, b'{"model": {"sku": "x", "price": 0}, "struct": {"sku": "y"}}', "model.price"),
        (Holder, b'{"model": {"sku": "x", "price": 1}, "struct": {"sku": 2}}', "struct.sku"),
    ],
)
def test_the_error_has_the_path_of_the_field(kind: Any, data: bytes, path: str) -> None:
    with pytest.raises(encore.DecodeError) as caught:
        encore.Json(kind).decode(data)
    assert caught.value.field == path
    assert caught.value.payload == data
    assert caught.value.__cause__ is not None


def test_a_model_of_an_old_pydantic_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    old = SimpleNamespace(BaseModel=pydantic.BaseModel, VERSION="1.10.24")
    monkeypatch.setitem(sys.modules, "pydantic", old)
    for kind in (Model, list[Model]):
        with pytest.raises(encore.ConfigurationError, match=r"pydantic 1\.10\.24"):
            encore.Json(kind)


@pytest.mark.parametrize("kind", [Model, Struct])
def test_a_value_of_another_class_is_not_written(kind: Any) -> None:
    with pytest.raises(TypeError, match=f"must be {kind.__name__}, not dict"):
        encore.Json(kind).encode({"id": 1})
