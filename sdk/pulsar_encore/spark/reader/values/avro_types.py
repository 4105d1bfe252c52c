"""Avro schemas as Spark types, as in the JVM connector and spark-avro."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pyspark.sql import types

from ....errors import ConfigurationError

_PLAIN: Final[Mapping[str, types.DataType]] = {
    "null": types.NullType(),
    "boolean": types.BooleanType(),
    "int": types.IntegerType(),
    "long": types.LongType(),
    "float": types.FloatType(),
    "double": types.DoubleType(),
    "bytes": types.BinaryType(),
    "string": types.StringType(),
    "fixed": types.BinaryType(),
    "enum": types.StringType(),
}
_NAMED: Final = ("record", "error", "enum", "fixed")
_TIMES: Final[Mapping[str, types.DataType]] = {
    "timestamp-millis": types.TimestampType(),
    "timestamp-micros": types.TimestampType(),
    "local-timestamp-millis": types.TimestampNTZType(),
    "local-timestamp-micros": types.TimestampNTZType(),
}
_WIDER: Final = {frozenset({"int", "long"}): "long", frozenset({"float", "double"}): "double"}
# Of decoded values; they tell the members of a union apart.
_PYTHON_TYPES: Final[Mapping[str, type]] = {
    "boolean": bool,
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "bytes": bytes,
    "fixed": bytes,
    "string": str,
    "enum": str,
    "array": list,
    "map": dict,
    "record": dict,
}
_MAX_DIGITS: Final = 38


MISSING: Final = object()
"""The default of a field without a default."""


@dataclass(frozen=True, slots=True)
class FieldRule:
    """The rules for a field of a record that the writer lacks."""

    nullable: bool = False
    default: Any = MISSING
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AvroNode:
    """A schema with all names resolved, and without nullability: in Spark everything may be null.

    Attributes:
        kind: Avro's type name, such as "record"; "union" of two or more types besides null.
        logical: The logical type, if it matters here.
        parts: Types of a record's fields, of the items of an array or map, or of a union's members.
        otherwise: The default symbol of an enum, or None.
        rules: One per field of a record. Equality ignores them.
    """

    kind: str
    logical: str = ""
    names: tuple[str, ...] = ()
    parts: tuple[AvroNode, ...] = ()
    digits: int = 0
    scale: int = 0
    symbols: tuple[str, ...] = ()
    otherwise: str | None = field(default=None, compare=False)
    rules: tuple[FieldRule, ...] = field(default=(), compare=False)

    def narrowed(self, names: Collection[str]) -> AvroNode:
        kept_at = [at for at, name in enumerate(self.names) if name in names]
        return replace(
            self,
            names=tuple(self.names[at] for at in kept_at),
            parts=tuple(self.parts[at] for at in kept_at),
            rules=tuple(self.rules[at] for at in kept_at),
        )


def read_avro(text: str, of: str) -> tuple[Any, AvroNode]:
    """Return a schema as parsed JSON and as a tree; `of` names it in a ConfigurationError."""
    try:
        schema = json.loads(text)
        return schema, _SchemaParser().node(schema, "", ())
    except _UnsupportedType as error:
        raise ConfigurationError(f"{of}: {error}; valueFormat=raw gives its bytes") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigurationError(f"{of} is no Avro schema in JSON: {error!r}") from error


class _UnsupportedType(Exception):
    """Spark has no type for the schema."""


class _SchemaParser:
    def __init__(self) -> None:
        self._named: dict[str, AvroNode | None] = {}  # None while its definition is being read

    def node(self, schema: Any, namespace: str, path: tuple[str, ...]) -> AvroNode:
        if isinstance(schema, list):
            return self._union(schema, namespace, path)
        if isinstance(schema, str):
            return self._reference(schema, namespace, path)
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.node(kind, namespace, path)
        if kind in _NAMED:
            return self._definition(schema, namespace, path)
        if kind == "array":
            return AvroNode("array", parts=(self.node(schema["items"], namespace, (*path, "[]")),))
        if kind == "map":
            return AvroNode("map", parts=(self.node(schema["values"], namespace, (*path, "{}")),))
        if kind in _PLAIN:
            return _leaf(kind, schema)
        return self._reference(kind, namespace, path)

    def _reference(self, word: str, namespace: str, path: tuple[str, ...]) -> AvroNode:
        if word in _PLAIN and word not in _NAMED:
            return AvroNode(word)
        names = (word,) if "." in word or not namespace else (f"{namespace}.{word}", word)
        for name in names:
            if name in self._named:
                found = self._named[name]
                if found is None:
                    raise _UnsupportedType(
                        f"{'.'.join(path)} is a {word} in a {word}: Spark has no recursive types"
                    )
                return found
        raise ValueError(f"there is no type {word!r}")

    def _definition(self, schema: Any, namespace: str, path: tuple[str, ...]) -> AvroNode:
        name = schema["name"]
        if "." in name:
            namespace = name.rpartition(".")[0]
        else:
            namespace = schema.get("namespace", namespace)
            name = f"{namespace}.{name}" if namespace else name
        self._named[name] = None
        kind = schema["type"]
        if kind in ("enum", "fixed"):
            node = _leaf(kind, schema)
        else:
            fields = schema["fields"]
            node = AvroNode(
                "record",
                names=tuple(each["name"] for each in fields),
                parts=tuple(
                    self.node(each["type"], namespace, (*path, each["name"])) for each in fields
                ),
                rules=tuple(map(_rule, fields)),
            )
        self._named[name] = node
        return node

    def _union(self, members: list[Any], namespace: str, path: tuple[str, ...]) -> AvroNode:
        nodes = [self.node(each, namespace, path) for each in members]
        nodes = [each for each in nodes if each.kind != "null"]
        if not nodes:
            return AvroNode("null")
        if len(nodes) == 1:
            return nodes[0]
        kinds = frozenset(each.kind for each in nodes)
        if len(nodes) == 2 and kinds in _WIDER:
            return AvroNode(_WIDER[kinds])
        if len({python_type(each) for each in nodes}) < len(nodes):
            raise _UnsupportedType(
                f"{'.'.join(path)} is one of {', '.join(each.kind for each in nodes)}, which "
                "cannot be told apart when they are read"
            )
        return AvroNode("union", parts=tuple(nodes))


def _rule(given: Any) -> FieldRule:
    return FieldRule(
        _takes_null(given["type"]), given.get("default", MISSING), tuple(given.get("aliases", ()))
    )


def _takes_null(schema: Any) -> bool:
    if isinstance(schema, list):
        return any(map(_takes_null, schema))
    if isinstance(schema, dict):
        return _takes_null(schema["type"])
    return bool(schema == "null")


def _leaf(kind: str, schema: Mapping[str, Any]) -> AvroNode:
    if kind == "enum":
        return AvroNode(
            kind, symbols=tuple(schema.get("symbols", ())), otherwise=schema.get("default")
        )
    logical = schema.get("logicalType", "")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        digits, scale = int(schema["precision"]), int(schema.get("scale", 0))
        if not 0 <= scale <= digits or digits < 1:
            return AvroNode(kind)  # the specification says to ignore an invalid logical type
        if digits > _MAX_DIGITS:
            raise _UnsupportedType(f"a decimal of {digits} digits has more than Spark's 38")
        return AvroNode(kind, logical, digits=digits, scale=scale)
    if (kind == "long" and logical in _TIMES) or (kind == "int" and logical == "date"):
        return AvroNode(kind, logical)
    return AvroNode(kind)


def python_type(node: AvroNode) -> type:
    return _PYTHON_TYPES[node.kind]


def spark_type(node: AvroNode) -> types.DataType:
    if node.kind == "record":
        fields = zip(node.names, node.parts, strict=True)
        return types.StructType(
            [types.StructField(name, spark_type(part)) for name, part in fields]
        )
    if node.kind == "union":
        members = [
            types.StructField(f"member{i}", spark_type(each)) for i, each in enumerate(node.parts)
        ]
        return types.StructType(members)
    if node.kind == "array":
        return types.ArrayType(spark_type(node.parts[0]))
    if node.kind == "map":
        return types.MapType(types.StringType(), spark_type(node.parts[0]))
    if node.logical == "decimal":
        return types.DecimalType(node.digits, node.scale)
    if node.logical == "date":
        return types.DateType()
    return _TIMES.get(node.logical, _PLAIN[node.kind])
