"""The definition of a JSON schema, as Java's `JSONSchema.of` makes it: an Avro schema.

Brokers compare definitions by Avro's rules. So the forms are those of Java:

- A field of str, bytes, list, dict, an enum or a class may be null and has the default null,
  whether or not Python requires it.
- A field of int, float or bool may not be null, unless its type says so. Its default in Python is
  its default here.
- int is "long" and float is "double"; `Int32` and `Float32` are Java's int and float.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Mapping
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args, get_origin
from uuid import UUID

from ..errors import ConfigurationError
from .json_converters import by_value
from .model_fields import ModelField, fields_of, is_record
from .type_forms import LISTS, MAPS, plain_type, type_name, union_parts


class AvroType(str):
    """Names the Avro type of an annotation: ``Annotated[int, AvroType("int")]``."""


Int32: TypeAlias = Annotated[int, AvroType("int")]
"""An int that Java declares as `int`: "int" in the definition of a schema, not "long"."""

Float32: TypeAlias = Annotated[float, AvroType("float")]
"""A float that Java declares as `float`: "float" in the definition of a schema, not "double"."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PRIMITIVES: Final = {bool: "boolean", int: "long", float: "double"}
_TEXTS: Final = (str, Decimal, UUID, dt.datetime, dt.date, dt.time)
_MAX_LONG: Final = 2**63


def definition_of(model: Any) -> bytes:
    """Return the definition of a class.

    Raises:
        ConfigurationError: if a field has no form in Avro.
    """
    return json.dumps(_Definitions().of(model, type_name(model))).encode()


def given_definition(definition: Any) -> bytes:
    """Return a definition that the application gave, as a dict or in JSON."""
    if isinstance(definition, Mapping):
        return json.dumps(definition).encode()
    if isinstance(definition, str):
        try:
            json.loads(definition)
        except ValueError as error:
            raise ConfigurationError(
                f"Json: definition must be an Avro schema in JSON: {error}"
            ) from error
        return definition.encode()
    raise ConfigurationError(
        f"Json: definition must be an Avro schema as a dict or str, got {type(definition).__name__}"
    )


class _Definitions:
    def __init__(self) -> None:
        self._names: dict[Any, str] = {}

    def of(self, annotation: Any, where: str) -> Any:
        parts, optional = union_parts(annotation)
        branches = [self._of_one(each, where) for each in parts]
        if optional:
            branches.insert(0, "null")
        return branches[0] if len(branches) == 1 else _union(branches, where)

    def _of_one(self, annotation: Any, where: str) -> Any:
        marker = _marker(annotation)
        if marker is not None:
            return str(marker)
        kind = plain_type(annotation)
        if kind in _PRIMITIVES:
            return _PRIMITIVES[kind]
        if kind in _TEXTS:
            return "string"
        if kind is bytes:
            return "bytes"
        if is_record(kind):
            return self._record(kind)
        if isinstance(kind, type) and issubclass(kind, Enum):
            return self._enum(kind)
        origin, args = get_origin(kind) or kind, get_args(kind)
        if origin is Literal:
            kinds = {type(each) for each in args}
            if kinds <= {str} or kinds <= {int} or kinds <= {bool}:
                return self._of_one(kinds.pop(), where)
        elif origin in LISTS and args and (origin is not tuple or args[1:] == (...,)):
            return {"type": "array", "items": self.of(args[0], where)}
        elif origin in MAPS and args:
            return {"type": "map", "values": self.of(args[1], where)}
        raise _no_form(where, f"of type {type_name(kind)}, which Avro cannot describe")

    def _record(self, model: Any) -> Any:
        name, is_new = self._name(model)
        if not is_new:
            return name
        fields = [self._field(each, f"{name}.{each.name}") for each in fields_of(model)]
        return {"type": "record", "name": name, "fields": fields}

    def _field(self, each: ModelField, where: str) -> dict[str, Any]:
        if not _NAME.fullmatch(each.key):
            raise _no_form(where, f"{each.key!r} in JSON, which is no name in Avro")
        parts, optional = union_parts(each.type)
        kinds = {plain_type(part) for part in parts}
        if optional or not kinds <= _PRIMITIVES.keys():
            branches = [self._of_one(part, where) for part in parts]
            return {"name": each.key, "type": _union(["null", *branches], where), "default": None}
        field: dict[str, Any] = {"name": each.key, "type": self.of(each.type, where)}
        if len(kinds) == 1 and type(each.default) in kinds and _is_in_range(each.default):
            field["default"] = each.default
        return field

    def _enum(self, kind: type[Enum]) -> Any:
        symbols = [each.value if by_value(kind) else each.name for each in kind]
        if all(isinstance(each, int) for each in symbols):
            return "long"
        if not all(isinstance(each, str) and _NAME.fullmatch(each) for each in symbols):
            return "string"
        name, is_new = self._name(kind)
        return {"type": "enum", "name": name, "symbols": symbols} if is_new else name

    def _name(self, kind: Any) -> tuple[str, bool]:
        """Return the name of a class in the definition, and whether it is used the first time."""
        known = self._names.get(kind)
        if known is not None:
            return known, False
        base = re.sub(r"\W+", "_", type_name(kind)).strip("_") or "Model"
        name, number = base, 1
        while name in self._names.values():
            number += 1
            name = f"{base}_{number}"
        self._names[kind] = name
        return name, True


def _is_in_range(value: Any) -> bool:
    if isinstance(value, float):
        return value - value == 0  # neither infinite nor NaN, which JSON does not have
    return isinstance(value, bool) or -_MAX_LONG <= value < _MAX_LONG


def _marker(annotation: Any) -> AvroType | None:
    if get_origin(annotation) is Annotated:
        for each in get_args(annotation)[1:]:
            if isinstance(each, AvroType):
                return each
    return None


def _union(branches: list[Any], where: str) -> list[Any]:
    kept: list[Any] = []
    for each in branches:
        if each not in kept:
            kept.append(each)
    kinds = [
        each["type"] if isinstance(each, dict) and each["type"] in ("array", "map") else str(each)
        for each in kept
    ]
    if len(set(kinds)) < len(kinds):
        raise _no_form(where, "a union of two lists or two maps, which Avro does not have")
    return kept


def _no_form(where: str, fault: str) -> ConfigurationError:
    return ConfigurationError(
        f"Json: {where} is {fault}, so the schema cannot be registered: pass "
        "Json(..., definition=...), an Avro schema, or change the type"
    )
