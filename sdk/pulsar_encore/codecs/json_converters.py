"""Converters between values of Python types and the values of `json`, in both directions.

A converter returns the converted value, or raises `Mismatch`.
"""

from __future__ import annotations

import binascii
import datetime as dt
from base64 import b64decode, b64encode
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Any, Final, TypeAlias
from uuid import UUID

Convert: TypeAlias = Callable[[Any], Any]

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_KINDS: Final = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    Decimal: "a number",
    str: "a string",
    list: "an array",
    dict: "an object",
}


class Mismatch(Exception):
    """A value does not fit its type. `path` leads to it, innermost part first."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason: str = reason
        self.path: list[str | int] = []


def json_kind(value: Any) -> str:
    """Name the JSON type of a parsed value."""
    return _KINDS.get(type(value), type(value).__name__)


def refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def same(value: Any) -> Any:
    return value


def without_decimals(value: Any) -> Any:
    """Return a parsed value without the Decimals that other fields asked for."""
    if type(value) is Decimal:
        return float(value)
    if type(value) is list:
        return [without_decimals(each) for each in value]
    if type(value) is dict:
        return {key: without_decimals(each) for key, each in value.items()}
    return value


def null(value: Any) -> None:
    if value is not None:
        raise Mismatch(f"it must be null, not {json_kind(value)}")


def or_none_converter(convert: Convert) -> Convert:
    def or_none(value: Any) -> Any:
        return None if value is None else convert(value)

    return or_none


def union_converter(converters: list[Convert]) -> Convert:
    """Return a converter by the first type of a union that fits."""

    def first_of(value: Any) -> Any:
        reasons: list[str] = []
        for convert in converters:
            try:
                return convert(value)
            except Mismatch as error:
                reasons.append(error.reason)
        raise Mismatch("no type of the union fits: " + "; ".join(dict.fromkeys(reasons)))

    return first_of


def _exact(kind: type, name: str) -> Convert:
    def exact(value: Any) -> Any:
        if type(value) is not kind:
            raise Mismatch(f"it must be {name}, not {json_kind(value)}")
        return value

    return exact


def _instance(kind: type, convert: Convert) -> Convert:
    def instance(value: Any) -> Any:
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise Mismatch(f"it must be {kind.__name__}, not {type(value).__name__}")
        return convert(value)

    return instance


def _float(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int or type(value) is Decimal:
        try:
            return float(value)
        except OverflowError as error:
            raise Mismatch("it is out of the range of float") from error
    raise Mismatch(f"it must be a number, not {json_kind(value)}")


def _float_out(value: Any) -> float:
    if isinstance(value, (float, int)) and not isinstance(value, bool):
        return float(value)
    raise Mismatch(f"it must be float, not {type(value).__name__}")


def _text(parse: Callable[[str], Any], name: str) -> Convert:
    def text(value: Any) -> Any:
        if type(value) is not str:
            raise Mismatch(f"it must be {name}, not {json_kind(value)}")
        try:
            return parse(value)
        except (ValueError, InvalidOperation) as error:
            raise Mismatch(f"it must be {name}, and the string is not") from error

    return text


def _decimal(value: Any) -> Decimal:
    if type(value) is Decimal:
        return value
    if type(value) is int:
        return Decimal(value)
    if type(value) is float:
        return Decimal(repr(value))
    found: Decimal = _decimal_text(value)
    return found


def _datetime(value: Any) -> dt.datetime:
    if type(value) is int:
        try:
            return _EPOCH + dt.timedelta(milliseconds=value)
        except OverflowError as error:
            raise Mismatch("it is out of the range of datetime") from error
    found: dt.datetime = _datetime_text(value)
    return found


def _date_out(value: Any) -> str:
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return value.isoformat()
    raise Mismatch(f"it must be date, not {type(value).__name__}")


def _base64(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error


def _finite(text: str) -> Decimal:
    found = Decimal(text)
    if not found.is_finite():
        raise ValueError("it is no number")
    return found


_decimal_text: Final = _text(_finite, "a decimal number")
_datetime_text: Final = _text(dt.datetime.fromisoformat, "a time in ISO 8601")
_int: Final = _exact(int, "an integer")
_bool: Final = _exact(bool, "a boolean")
PRIMITIVES: Final[dict[Any, tuple[Convert, Convert]]] = {
    str: (_exact(str, "a string"), _instance(str, same)),
    int: (_int, _instance(int, same)),
    bool: (_bool, _instance(bool, same)),
    float: (_float, _float_out),
    bytes: (_text(_base64, "base64"), _instance(bytes, lambda value: b64encode(value).decode())),
    Decimal: (_decimal, _instance(Decimal, str)),
    UUID: (_text(UUID, "a UUID"), _instance(UUID, str)),
    dt.datetime: (_datetime, _instance(dt.datetime, dt.datetime.isoformat)),
    dt.date: (
        _text(dt.date.fromisoformat, "a date in ISO 8601"),
        _date_out,
    ),
    dt.time: (
        _text(dt.time.fromisoformat, "a time of day in ISO 8601"),
        _instance(dt.time, dt.time.isoformat),
    ),
}


def int_key(value: Any) -> int:
    try:
        return int(value)
    except ValueError as error:
        raise Mismatch("a key must be an integer") from error


def by_value(kind: type[Enum]) -> bool:
    """Return True if members of an enum are written as their values, else as their names."""
    return all(type(each.value) in (str, int) for each in kind)


def enum_converters(kind: type[Enum]) -> tuple[Convert, Convert]:
    values = {each.value: each for each in kind} if by_value(kind) else {}
    names: dict[str, Enum] = dict(kind.__members__)

    def decode(value: Any) -> Any:
        if type(value) in (str, int):
            member = values.get(value)
            if member is None:
                member = names.get(value)
            if member is not None:
                return member
            raise Mismatch(f"it is no value of {kind.__name__}")
        raise Mismatch(f"it must be a value of {kind.__name__}, not {json_kind(value)}")

    def encode(value: Any) -> Any:
        if not isinstance(value, kind):
            raise Mismatch(f"it must be {kind.__name__}, not {type(value).__name__}")
        return value.value if values else value.name

    return decode, encode


def enum_key_converters(kind: type[Enum]) -> tuple[Convert, Convert]:
    """As `enum_converters`, for keys, which are texts in JSON, also those of integers."""
    _, encode = enum_converters(kind)
    texts = {**kind.__members__, **{str(encode(each)): each for each in kind}}

    def decode(value: Any) -> Any:
        member = texts.get(value)
        if member is None:
            raise Mismatch(f"a key is no value of {kind.__name__}")
        return member

    return decode, lambda value: str(encode(value))


def literal_converter(choices: tuple[Any, ...]) -> Convert:
    def literal(value: Any) -> Any:
        for each in choices:
            if type(each) is type(value) and each == value:
                return value
        raise Mismatch(f"it must be one of {', '.join(map(repr, choices))}, not {json_kind(value)}")

    return literal


def list_decoder(convert: Convert, make: Any) -> Convert:
    def decode(value: Any) -> Any:
        if type(value) is not list:
            raise Mismatch(f"it must be an array, not {json_kind(value)}")
        found: list[Any] = []
        add = found.append
        try:
            for each in value:
                add(convert(each))
        except Mismatch as error:
            error.path.append(len(found))
            raise
        return found if make is list else make(found)

    return decode


def list_encoder(convert: Convert, kind: Any) -> Convert:
    allowed = (list, tuple) if kind is list else (set, frozenset) if kind is set else kind

    def encode(value: Any) -> Any:
        if not isinstance(value, allowed):
            raise Mismatch(f"it must be {kind.__name__}, not {type(value).__name__}")
        found: list[Any] = []
        add = found.append
        try:
            for each in value:
                add(convert(each))
        except Mismatch as error:
            error.path.append(len(found))
            raise
        return found

    return encode


def tuple_converter(converters: list[Convert]) -> Convert:
    def convert(value: Any) -> Any:
        if not isinstance(value, (list, tuple)) or len(value) != len(converters):
            raise Mismatch(
                f"it must be an array of {len(converters)} items, not {json_kind(value)}"
            )
        found: list[Any] = []
        try:
            for each, item in zip(converters, value, strict=True):
                found.append(each(item))
        except Mismatch as error:
            error.path.append(len(found))
            raise
        return tuple(found)

    return convert


def map_converter(convert_key: Convert, convert: Convert) -> Convert:
    def convert_map(value: Any) -> Any:
        if not isinstance(value, dict):
            raise Mismatch(f"it must be an object, not {json_kind(value)}")
        found: dict[Any, Any] = {}
        for key, each in value.items():
            try:
                found[convert_key(key)] = convert(each)
            except Mismatch as error:
                error.path.append(f"[{key!r}]")
                raise
        return found

    return convert_map
