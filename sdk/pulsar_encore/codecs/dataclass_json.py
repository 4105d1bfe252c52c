"""JSON for dataclasses and TypedDicts: strict in types, and errors name the field.

Rules for reading:

- Unknown fields are ignored.
- A missing field gets its default. Without a default it is None if None is allowed, because Java's
  clients omit nulls; else it is an error.
- Values are not converted between JSON types: ``"1"`` is no int, and 1.0 is none either. An int is
  a valid float.
- datetime, date and time are ISO 8601 texts; a datetime may also be a number of ms since the epoch,
  as Java writes it. Decimal and UUID are texts, and a Decimal may also be a number. Bytes are
  base64. An enum is its value, or its name, as Java writes it.
"""

from __future__ import annotations

import binascii
import collections.abc
import datetime as dt
import json
import sys
import types
from base64 import b64decode, b64encode
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NewType,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    is_typeddict,
)
from uuid import UUID

from ..errors import ConfigurationError
from .model_fields import MISSING, fields_of, is_pydantic, is_record, is_struct

_Convert: TypeAlias = Callable[[Any], Any]

LISTS: Final[dict[Any, Any]] = {
    list: list,
    collections.abc.Sequence: list,
    collections.abc.Iterable: list,
    collections.abc.Collection: list,
    tuple: tuple,
    set: set,
    collections.abc.Set: set,
    frozenset: frozenset,
}
MAPS: Final[tuple[Any, ...]] = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
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
_UNIONS: Final = (Union, types.UnionType)


class Mismatch(Exception):
    """A value does not fit its type. `path` leads to it, innermost part first."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason: str = reason
        self.path: list[str | int] = []


def plain_type(annotation: Any) -> Any:
    """Return an annotation without `Annotated`, `NewType` and type aliases."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif isinstance(annotation, NewType):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":  # `type X = ...`, from Python 3.12
            annotation = annotation.__value__
        else:
            return annotation


def union_parts(annotation: Any) -> tuple[list[Any], bool]:
    """Return the types of a union other than None, and whether None is one."""
    plain = plain_type(annotation)
    if get_origin(plain) not in _UNIONS:
        return ([], True) if plain in (None, type(None)) else ([annotation], False)
    parts: list[Any] = []
    optional = False
    for each in get_args(plain):
        inner, has_none = union_parts(each)
        parts += inner
        optional = optional or has_none
    return parts, optional


class JsonForm:
    """Converts between objects of a type and the values of `json`.

    Raises:
        ConfigurationError: if the type, or that of a field, has no form in JSON.
    """

    def __init__(self, model: Any) -> None:
        self._records: dict[Any, _Record] = {}
        self._has_decimals = False
        self._decode, self._encode = self._converters(model, _name(model))

    def decode(self, data: bytes) -> Any:
        """Return the object of a JSON text.

        Raises:
            Mismatch: if it does not fit.
            ValueError: if it is not JSON.
        """
        if self._has_decimals:
            parsed = json.loads(data, parse_float=Decimal, parse_constant=_constant)
        else:
            parsed = json.loads(data, parse_constant=_constant)
        return self._decode(parsed)

    def encode(self, value: Any) -> bytes:
        """Return an object as a JSON text.

        Raises:
            Mismatch: if a value is not of its declared type.
        """
        plain = self._encode(value)
        return json.dumps(
            plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")
        ).encode()

    def _converters(self, annotation: Any, where: str) -> tuple[_Convert, _Convert]:
        parts, optional = union_parts(annotation)
        if not parts:
            return _null, _null
        found = [self._of_one(each, where) for each in parts]
        decode, encode = found[0]
        if len(found) > 1:
            decode = _first_of([each[0] for each in found])
            encode = _first_of([each[1] for each in found])
        if optional:
            return _or_none(decode), _or_none(encode)
        return decode, encode

    def _of_one(self, annotation: Any, where: str) -> tuple[_Convert, _Convert]:
        kind = plain_type(annotation)
        if kind in (Any, object):
            return _any, _same
        if kind in _PRIMITIVES:
            self._has_decimals = self._has_decimals or kind is Decimal
            return _PRIMITIVES[kind]
        if is_pydantic(kind):
            return _pydantic(kind)
        if is_struct(kind):
            return _struct(kind)
        if is_record(kind):
            record = self._records.get(kind)
            if record is None:
                record = self._records[kind] = _Record(kind)
                record.set_fields(self._converters)
            return record.decode, record.encode
        if isinstance(kind, type) and issubclass(kind, Enum):
            return _enum(kind)
        return self._of_generic(kind, where)

    def _of_generic(self, kind: Any, where: str) -> tuple[_Convert, _Convert]:
        origin, args = get_origin(kind) or kind, get_args(kind)
        if origin is Literal:
            return _literal(args), _literal(args)
        if origin is tuple and args and args[-1] is not Ellipsis:
            pairs = [self._converters(each, where) for each in args]
            return _tuple([each[0] for each in pairs]), _tuple([each[1] for each in pairs])
        if origin in LISTS:
            decode, encode = self._converters(args[0] if args else Any, where)
            return _list_decoder(decode, LISTS[origin]), _list_encoder(encode, LISTS[origin])
        if origin in MAPS:
            key, item = args or (str, Any)
            decode_key, encode_key = self._keys(key, where)
            decode, encode = self._converters(item, where)
            return _map(decode_key, decode), _map(encode_key, encode)
        raise ConfigurationError(
            f"Json: {where} is of type {_name(kind)}, which has no form in JSON here: use a "
            "dataclass, a TypedDict, a pydantic model or a msgspec Struct with fields of str, int, "
            "float, bool, bytes, list, dict, Enum, datetime, date, time, Decimal, UUID and unions "
            "of these; or write a codec with encode and decode"
        )

    def _keys(self, annotation: Any, where: str) -> tuple[_Convert, _Convert]:
        kind = plain_type(annotation)
        if kind in (str, Any):
            return _PRIMITIVES[str]
        if kind is int:
            return _int_key, lambda value: str(_PRIMITIVES[int][1](value))
        if kind is UUID or (isinstance(kind, type) and issubclass(kind, Enum)):
            return self._of_one(kind, where)
        raise ConfigurationError(
            f"Json: {where} has keys of type {_name(kind)}: a JSON object has keys of str, int, "
            "UUID or Enum"
        )


class _Record:
    """A dataclass or a TypedDict."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._is_dict = is_typeddict(model)
        self._decoded: list[tuple[str, str, _Convert, bool, bool]] = []
        self._encoded: list[tuple[str, str, _Convert, bool]] = []
        self._names: frozenset[str] = frozenset()

    def set_fields(self, converters: Callable[[Any, str], tuple[_Convert, _Convert]]) -> None:
        for each in fields_of(self._model):
            decode, encode = converters(each.type, f"{_name(self._model)}.{each.name}")
            if each.settable:
                # A missing field without a default is None if that is allowed.
                fill = each.required and union_parts(each.type)[1]
                self._decoded.append((each.name, each.key, decode, each.required, fill))
            self._encoded.append((each.name, each.key, encode, each.required))
        self._names = frozenset(each[0] for each in self._encoded)

    def decode(self, value: Any) -> Any:
        if type(value) is not dict:
            raise Mismatch(f"it must be an object, not {_kind(value)}")
        found: dict[str, Any] = {}
        for name, key, decode, required, fill in self._decoded:
            item = value.get(key, MISSING)
            if item is MISSING:
                if fill:
                    found[name] = None
                elif required:
                    error = Mismatch("it is missing")
                    error.path.append(key)
                    raise error
                continue
            try:
                found[name] = decode(item)
            except Mismatch as error:
                error.path.append(key)
                raise
        if self._is_dict:
            return found
        try:
            return self._model(**found)
        except Exception as error:  # of `__post_init__`
            raise Mismatch(f"{self._model.__name__} does not accept it: {error}") from error

    def encode(self, value: Any) -> Any:
        if self._is_dict:
            return self._encode_dict(value)
        if not isinstance(value, self._model):
            raise Mismatch(f"it must be {_name(self._model)}, not {type(value).__name__}")
        encoded: dict[str, Any] = {}
        for name, key, encode, _ in self._encoded:
            try:
                encoded[key] = encode(getattr(value, name))
            except Mismatch as error:
                error.path.append(key)
                raise
        return encoded

    def _encode_dict(self, value: Any) -> Any:
        if not isinstance(value, dict):
            raise Mismatch(f"it must be a dict, not {type(value).__name__}")
        unknown = value.keys() - self._names
        if unknown:
            raise Mismatch(f"{_name(self._model)} has no key {min(map(repr, unknown))}")
        encoded: dict[str, Any] = {}
        for name, key, encode, required in self._encoded:
            if name not in value:
                if required:
                    error = Mismatch("it is missing")
                    error.path.append(key)
                    raise error
                continue
            try:
                encoded[key] = encode(value[name])
            except Mismatch as error:
                error.path.append(key)
                raise
        return encoded


def _name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)


def _kind(value: Any) -> str:
    """Name the JSON type of a parsed value."""
    return _KINDS.get(type(value), type(value).__name__)


def _constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _same(value: Any) -> Any:
    return value


def _any(value: Any) -> Any:
    """Return a parsed value without the Decimals that other fields asked for."""
    if type(value) is Decimal:
        return float(value)
    if type(value) is list:
        return [_any(each) for each in value]
    if type(value) is dict:
        return {key: _any(each) for key, each in value.items()}
    return value


def _null(value: Any) -> None:
    if value is not None:
        raise Mismatch(f"it must be null, not {_kind(value)}")


def _or_none(convert: _Convert) -> _Convert:
    def or_none(value: Any) -> Any:
        return None if value is None else convert(value)

    return or_none


def _first_of(converters: list[_Convert]) -> _Convert:
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


def _exact(kind: type, name: str) -> _Convert:
    def exact(value: Any) -> Any:
        if type(value) is not kind:
            raise Mismatch(f"it must be {name}, not {_kind(value)}")
        return value

    return exact


def _instance(kind: type, convert: _Convert) -> _Convert:
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
    raise Mismatch(f"it must be a number, not {_kind(value)}")


def _float_out(value: Any) -> float:
    if isinstance(value, (float, int)) and not isinstance(value, bool):
        return float(value)
    raise Mismatch(f"it must be float, not {type(value).__name__}")


def _text(parse: Callable[[str], Any], name: str) -> _Convert:
    def text(value: Any) -> Any:
        if type(value) is not str:
            raise Mismatch(f"it must be {name}, not {_kind(value)}")
        try:
            return parse(value)
        except (ValueError, InvalidOperation) as error:
            raise Mismatch(f"it must be {name}, not {value[:40]!r}") from error

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
_PRIMITIVES: Final[dict[Any, tuple[_Convert, _Convert]]] = {
    str: (_exact(str, "a string"), _instance(str, _same)),
    int: (_int, _instance(int, _same)),
    bool: (_bool, _instance(bool, _same)),
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


def _int_key(value: Any) -> int:
    try:
        return int(value)
    except ValueError as error:
        raise Mismatch(f"a key must be an integer, not {value[:40]!r}") from error


def by_value(kind: type[Enum]) -> bool:
    """Return True if members of an enum are written as their values, else as their names."""
    return all(type(each.value) in (str, int) for each in kind)


def _enum(kind: type[Enum]) -> tuple[_Convert, _Convert]:
    values = {each.value: each for each in kind} if by_value(kind) else {}
    names: dict[str, Enum] = dict(kind.__members__)

    def decode(value: Any) -> Any:
        if type(value) in (str, int):
            member = values.get(value)
            if member is None:
                member = names.get(value)
            if member is not None:
                return member
            raise Mismatch(f"{value!r} is no value of {kind.__name__}")
        raise Mismatch(f"it must be a value of {kind.__name__}, not {_kind(value)}")

    def encode(value: Any) -> Any:
        if not isinstance(value, kind):
            raise Mismatch(f"it must be {kind.__name__}, not {type(value).__name__}")
        return value.value if values else value.name

    return decode, encode


def _literal(choices: tuple[Any, ...]) -> _Convert:
    def literal(value: Any) -> Any:
        for each in choices:
            if type(each) is type(value) and each == value:
                return value
        raise Mismatch(f"it must be one of {', '.join(map(repr, choices))}, not {_kind(value)}")

    return literal


def _list_decoder(convert: _Convert, make: Any) -> _Convert:
    def decode(value: Any) -> Any:
        if type(value) is not list:
            raise Mismatch(f"it must be an array, not {_kind(value)}")
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


def _list_encoder(convert: _Convert, kind: Any) -> _Convert:
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


def _tuple(converters: list[_Convert]) -> _Convert:
    def convert(value: Any) -> Any:
        if not isinstance(value, (list, tuple)) or len(value) != len(converters):
            raise Mismatch(f"it must be an array of {len(converters)} items, not {_kind(value)}")
        found: list[Any] = []
        try:
            for each, item in zip(converters, value, strict=True):
                found.append(each(item))
        except Mismatch as error:
            error.path.append(len(found))
            raise
        return tuple(found)

    return convert


def _map(convert_key: _Convert, convert: _Convert) -> _Convert:
    def convert_map(value: Any) -> Any:
        if not isinstance(value, dict):
            raise Mismatch(f"it must be an object, not {_kind(value)}")
        found: dict[Any, Any] = {}
        for key, each in value.items():
            try:
                found[convert_key(key)] = convert(each)
            except Mismatch as error:
                error.path.append(f"[{key!r}]")
                raise
        return found

    return convert_map


def _pydantic(model: Any) -> tuple[_Convert, _Convert]:
    adapter = sys.modules["pydantic"].TypeAdapter(model)

    def decode(value: Any) -> Any:
        try:
            return adapter.validate_json(json.dumps(_any(value)))
        except ValueError as error:
            raise pydantic_mismatch(error) from error

    def encode(value: Any) -> Any:
        return adapter.dump_python(value, mode="json", by_alias=True)

    return decode, encode


def pydantic_mismatch(error: Any) -> Mismatch:
    """Return the first problem that pydantic found."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    found = Mismatch(first["msg"])
    found.path = list(reversed(first["loc"]))
    return found


def _struct(model: Any) -> tuple[_Convert, _Convert]:
    msgspec = sys.modules["msgspec"]

    def decode(value: Any) -> Any:
        try:
            return msgspec.convert(_any(value), model)
        except msgspec.ValidationError as error:
            raise struct_mismatch(error) from error

    return decode, msgspec.to_builtins


def struct_mismatch(error: Exception) -> Mismatch:
    """Return the problem that msgspec found; its text ends in ``- at `$.lines[0].price` ``."""
    reason, _, at = str(error).partition(" - at `$")
    found = Mismatch(reason)
    path = at.removesuffix("`").removeprefix(".")
    if path:
        found.path = [path]
    return found
