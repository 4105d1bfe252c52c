"""JSON for dataclasses and TypedDicts: strict in types, and errors name the field.

Rules for reading:

- Unknown fields are ignored.
- A missing field gets its default. An optional field without a default becomes None, because Java's
  clients omit nulls. Any other missing field is an error.
- Values are not converted between JSON types: neither ``"1"`` nor 1.0 is an int. An int is a valid
  float.
- datetime, date and time are ISO 8601 texts; a datetime may also be a number of ms since the epoch,
  as Java writes it. Decimal and UUID are texts, and a Decimal may also be a number. Bytes are
  base64. An enum is its value, or its name, as Java writes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, get_args, get_origin, is_typeddict
from uuid import UUID

from ..errors import ConfigurationError
from .json_converters import (
    PRIMITIVES,
    Convert,
    Mismatch,
    enum_converters,
    enum_key_converters,
    int_key,
    json_kind,
    list_decoder,
    list_encoder,
    literal_converter,
    map_converter,
    null,
    or_none_converter,
    refuse_constant,
    same,
    tuple_converter,
    union_converter,
    without_decimals,
)
from .library_json import pydantic_converters, struct_converters
from .model_fields import MISSING, fields_of, is_pydantic, is_record, is_struct
from .type_forms import LISTS, MAPS, plain_type, type_name, union_parts


class JsonForm:
    """Converts between objects of a type and the values of `json`.

    Raises:
        ConfigurationError: if the type, or that of a field, has no form in JSON.
    """

    def __init__(self, model: Any) -> None:
        self._records: dict[Any, _Record] = {}
        self._has_decimals = False
        self._decode, self._encode = self._converters(model, type_name(model))

    def decode(self, data: bytes) -> Any:
        """Return the object of a JSON text.

        Raises:
            Mismatch: if it does not fit.
            ValueError: if it is not JSON.
        """
        if self._has_decimals:
            parsed = json.loads(data, parse_float=Decimal, parse_constant=refuse_constant)
        else:
            parsed = json.loads(data, parse_constant=refuse_constant)
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

    def _decode_any(self, value: Any) -> Any:
        return without_decimals(value) if self._has_decimals else value

    def _converters(self, annotation: Any, where: str) -> tuple[Convert, Convert]:
        parts, optional = union_parts(annotation)
        if not parts:
            return null, null
        found = [self._of_one(each, where) for each in parts]
        decode, encode = found[0]
        if len(found) > 1:
            decode = union_converter([each[0] for each in found])
            encode = union_converter([each[1] for each in found])
        if optional:
            return or_none_converter(decode), or_none_converter(encode)
        return decode, encode

    def _of_one(self, annotation: Any, where: str) -> tuple[Convert, Convert]:
        kind = plain_type(annotation)
        if kind in (Any, object):
            return self._decode_any, same
        if kind in PRIMITIVES:
            self._has_decimals = self._has_decimals or kind is Decimal
            return PRIMITIVES[kind]
        if is_pydantic(kind):
            return pydantic_converters(kind)
        if is_struct(kind):
            return struct_converters(kind)
        if is_record(kind):
            record = self._records.get(kind)
            if record is None:
                record = self._records[kind] = _Record(kind)
                record.set_fields(self._converters)
            return record.decode, record.encode
        if isinstance(kind, type) and issubclass(kind, Enum):
            return enum_converters(kind)
        return self._of_generic(kind, where)

    def _of_generic(self, kind: Any, where: str) -> tuple[Convert, Convert]:
        origin, args = get_origin(kind) or kind, get_args(kind)
        if origin is Literal:
            return literal_converter(args), literal_converter(args)
        if origin is tuple and args and args[-1] is not Ellipsis:
            pairs = [self._converters(each, where) for each in args]
            return tuple_converter([each[0] for each in pairs]), tuple_converter(
                [each[1] for each in pairs]
            )
        if origin in LISTS:
            decode, encode = self._converters(args[0] if args else Any, where)
            return list_decoder(decode, LISTS[origin]), list_encoder(encode, LISTS[origin])
        if origin in MAPS:
            key, item = args or (str, Any)
            decode_key, encode_key = self._keys(key, where)
            decode, encode = self._converters(item, where)
            return map_converter(decode_key, decode), map_converter(encode_key, encode)
        raise ConfigurationError(
            f"Json: {where} is of type {type_name(kind)}, which has no form in JSON here: use a "
            "dataclass, a TypedDict, a pydantic model or a msgspec Struct with fields of str, int, "
            "float, bool, bytes, list, dict, Enum, datetime, date, time, Decimal, UUID and unions "
            "of these; or write a codec with encode and decode"
        )

    def _keys(self, annotation: Any, where: str) -> tuple[Convert, Convert]:
        kind = plain_type(annotation)
        if kind in (str, Any):
            return PRIMITIVES[str]
        if kind is int:
            return int_key, lambda value: str(PRIMITIVES[int][1](value))
        if kind is UUID:
            return PRIMITIVES[UUID]
        if isinstance(kind, type) and issubclass(kind, Enum):
            return enum_key_converters(kind)
        raise ConfigurationError(
            f"Json: {where} has keys of type {type_name(kind)}: a JSON object has keys of str, "
            "int, UUID or Enum"
        )


class _Record:
    """A dataclass or a TypedDict."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._is_dict = is_typeddict(model)
        self._decoded: list[tuple[str, str, Convert, bool, bool]] = []
        self._encoded: list[tuple[str, str, Convert, bool]] = []
        self._names: frozenset[str] = frozenset()

    def set_fields(self, converters: Callable[[Any, str], tuple[Convert, Convert]]) -> None:
        for each in fields_of(self._model):
            decode, encode = converters(each.type, f"{type_name(self._model)}.{each.name}")
            if each.settable:
                # An optional field without a default becomes None if it is missing.
                fill = each.required and union_parts(each.type)[1]
                self._decoded.append((each.name, each.key, decode, each.required, fill))
            self._encoded.append((each.name, each.key, encode, each.required))
        self._names = frozenset(each[0] for each in self._encoded)

    def decode(self, value: Any) -> Any:
        if type(value) is not dict:
            raise Mismatch(f"it must be an object, not {json_kind(value)}")
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
            raise Mismatch(f"it must be {type_name(self._model)}, not {type(value).__name__}")
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
            raise Mismatch(f"{type_name(self._model)} has no key {min(map(repr, unknown))}")
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
