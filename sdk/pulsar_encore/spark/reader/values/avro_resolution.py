"""Resolution of Avro schemas: values of one schema become values of another.

fastavro decodes with the writer's schema alone. `conversion` turns its objects into objects that
Arrow takes for the reader's schema. Where Avro's rules give an error, a value is still read if a
sensible one exists: brokers accept such evolutions (FORWARD compatibility), and one field must not
hide the others.

- A field that the writer lacks is null if the reader's schema allows null.
- A null that the writer wrote stays null, even if the reader's schema forbids it.
- A symbol that the reader's enum lacks is kept as text, if the enum has no default.
- Numbers are narrowed if they fit, and whole fractions become integers.
- Records match by their position in the schema, whatever their names are.
- Times and decimals keep the unit and scale of the writer's schema.

Any other value fails its own row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from math import inf
from typing import Any, Final, TypeAlias

from .avro_types import MISSING, AvroNode, FieldRule, python_type

Convert: TypeAlias = Callable[[Any], Any]
"""Converts fastavro's object, never None, to an object that Arrow takes."""

_MILLIS: Final = "-millis"
_MS: Final = 1000  # us
_FLOAT_OVERFLOW: Final = 2.0**128 - 2.0**103  # the least double that rounds to an infinite float
_DAY: Final = 86_400_000_000  # us
_INTEGERS: Final = ("int", "long")
_FRACTIONS: Final = ("float", "double")
_TEXTS: Final = ("string", "enum")
_BINARY: Final = ("bytes", "fixed")

_RANKS: Final = {
    # To a wider type, without a loss.
    ("int", "long"): 2,
    ("float", "double"): 2,
    # To a fraction; large integers are rounded.
    ("int", "float"): 3,
    ("int", "double"): 3,
    ("long", "float"): 3,
    ("long", "double"): 3,
    # To a narrower type, which some values do not fit.
    ("long", "int"): 4,
    ("float", "int"): 4,
    ("float", "long"): 4,
    ("double", "int"): 4,
    ("double", "long"): 4,
    ("double", "float"): 4,
    # Of text and bytes.
    ("string", "enum"): 2,
    ("enum", "string"): 2,
    ("bytes", "fixed"): 2,
    ("fixed", "bytes"): 2,
    ("string", "bytes"): 3,
    ("bytes", "string"): 3,
}
"""How well a type converts to another one, from 2 (well) to 4; other pairs do not."""


def conversion(writer: AvroNode, reader: AvroNode, path: str = "") -> Convert | None:
    """Return a function that converts values that are not null; None if no value changes.

    The function may change a value in place. It raises ValueError for a value that does not fit.
    The reader's record may lack fields that are not read. `path` names the value in errors.
    """
    if writer.kind == "null":
        return None
    if writer.kind == "union":
        return _from_union(writer, reader, path)
    if reader.kind == "union":
        return _to_member(writer, reader, path)
    if _rank(writer, reader) is None:
        return _fails(
            f"{path or 'the value'} was written as {_named(writer)}, which is no {_named(reader)}"
        )
    if reader.kind == "record":
        return _record(writer, reader, path)
    if reader.kind == "array":
        return _array(conversion(writer.parts[0], reader.parts[0], f"{path}[]"))
    if reader.kind == "map":
        return _map(conversion(writer.parts[0], reader.parts[0], f"{path}{{}}"))
    return _leaf(writer, reader)


def _fails(text: str) -> Convert:
    def convert(value: Any) -> Any:
        raise ValueError(text)

    return convert


def _named(node: AvroNode) -> str:
    return node.logical or node.kind


def _rank(writer: AvroNode, reader: AvroNode) -> int | None:
    """Return how well a type converts to another: 0 is best, None is impossible.

    A value becomes the member of a union with the lowest rank. Avro chooses the first possible
    member, which could be text for bytes, or a fraction for an integer.
    """
    source_kind, target_kind = writer.kind, reader.kind
    if reader.logical == "decimal" and source_kind not in _BINARY:
        return None
    if source_kind == target_kind:
        return 0 if writer.logical == reader.logical else 1
    return _RANKS.get((source_kind, target_kind))


def _from_union(writer: AvroNode, reader: AvroNode, path: str) -> Convert:
    """Convert by the Python type of a value; `read_avro` checks that the members' types differ."""
    members = {python_type(each): conversion(each, reader, path) for each in writer.parts}

    def convert(value: Any) -> Any:
        each = members[type(value)]
        return value if each is None else each(value)

    return convert


def _to_member(writer: AvroNode, reader: AvroNode, path: str) -> Convert:
    ranks = [(_rank(writer, each), at) for at, each in enumerate(reader.parts)]
    fitting = [(rank, at) for rank, at in ranks if rank is not None]
    if not fitting:
        return _fails(
            f"{path or 'the value'} was written as {_named(writer)}, which is none of "
            f"{', '.join(map(_named, reader.parts))}"
        )
    _, at = min(fitting)
    name, inner = f"member{at}", conversion(writer, reader.parts[at], path)
    if inner is None:
        return lambda value: {name: value}
    return lambda value: {name: inner(value)}


def _record(writer: AvroNode, reader: AvroNode, path: str) -> Convert | None:
    types_by_name = dict(zip(writer.names, writer.parts, strict=True))
    mapped: list[tuple[str, str, Convert | None]] = []
    defaults: dict[str, Any] = {}
    for name, part, rule in zip(reader.names, reader.parts, reader.rules, strict=True):
        where = f"{path}.{name}" if path else name
        source = next((each for each in (name, *rule.aliases) if each in types_by_name), None)
        if source is not None:
            mapped.append((name, source, conversion(types_by_name[source], part, where)))
            continue
        try:
            defaults[name] = _absent(part, rule)
        except ValueError:
            return _fails(
                f"{where} is not in the schema it was written with, has no default and may not be "
                "null"
            )
    if not defaults and all(name == source for name, source, _ in mapped):
        return _in_place([(name, inner) for name, _, inner in mapped if inner is not None])

    def convert(value: Any) -> Any:
        record = dict(defaults)
        for name, source, inner in mapped:
            found = value[source]
            record[name] = found if found is None or inner is None else inner(found)
        return record

    return convert


def _in_place(changed: list[tuple[str, Convert]]) -> Convert | None:
    """Convert fields of a record; Arrow ignores fields that the reader's schema lacks."""
    if not changed:
        return None

    def convert(value: Any) -> Any:
        for name, inner in changed:
            found = value[name]
            if found is not None:
                value[name] = inner(found)
        return value

    return convert


def _array(inner: Convert | None) -> Convert | None:
    if inner is None:
        return None
    return lambda value: [None if each is None else inner(each) for each in value]


def _map(inner: Convert | None) -> Convert:
    if inner is None:
        return lambda value: list(value.items())
    return lambda value: [
        (key, None if each is None else inner(each)) for key, each in value.items()
    ]


def _leaf(writer: AvroNode, reader: AvroNode) -> Convert | None:
    if reader.logical == "decimal":
        return decimal_of(writer.scale if writer.logical == "decimal" else reader.scale)
    if reader.kind in _INTEGERS:
        return _integer(writer, reader)
    if reader.kind in _FRACTIONS:
        if writer.kind in _INTEGERS:
            return float
        return _single if (writer.kind, reader.kind) == ("double", "float") else None
    if reader.kind in _TEXTS:
        if writer.kind == "bytes":
            return bytes.decode
        return _symbol(writer, reader)
    if writer.kind in _TEXTS:
        return str.encode
    return None


def _integer(writer: AvroNode, reader: AvroNode) -> Convert | None:
    if writer.kind in _FRACTIONS:
        scale = _unit("", reader.logical)
        return lambda value: _whole(value) * scale
    scale = _unit(writer.logical, reader.logical)
    return None if scale == 1 else lambda value: value * scale


def _unit(writer: str, reader: str) -> int:
    """Return the factor that converts a time to us; 1 for a number that is no time."""
    if "timestamp" not in reader:
        return 1
    if writer == "date":
        return _DAY
    logical = writer if "timestamp" in writer else reader
    return _MS if logical.endswith(_MILLIS) else 1


def _whole(value: float) -> int:
    if not value.is_integer():  # covers infinity and NaN
        raise ValueError(f"{value!r} is no integer")
    return int(value)


def _single(value: float) -> float:
    if _FLOAT_OVERFLOW <= abs(value) < inf:  # Arrow would make it infinite
        raise ValueError(f"{value!r} does not fit a float")
    return value


def _symbol(writer: AvroNode, reader: AvroNode) -> Convert | None:
    known, default_symbol = frozenset(reader.symbols), reader.otherwise
    if (
        reader.kind != "enum"
        or default_symbol is None
        or (writer.symbols and known >= {*writer.symbols})
    ):
        return None
    return lambda value: value if value in known else default_symbol


def decimal_of(scale: int) -> Convert:
    """Return a function that converts unscaled big-endian bytes to a decimal."""

    def convert(value: Any) -> Any:
        unscaled = int.from_bytes(value, "big", signed=True)
        return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))

    return convert


def _absent(node: AvroNode, rule: FieldRule) -> Any:
    """Return the default of a field that the writer lacks, or null, or raise ValueError."""
    if rule.default is not MISSING:
        try:
            return _default(node, rule.default, nullable=rule.nullable)
        except (ValueError, TypeError):
            pass
    if not rule.nullable:
        raise ValueError("no default")
    return None


def _default(node: AvroNode, given: Any, *, nullable: bool) -> Any:
    """Convert a default in JSON for Arrow; ValueError or TypeError if it is not of the type."""
    if given is None:
        if not nullable and node.kind != "null":
            raise ValueError("null")
        return None
    if node.kind == "union":
        return _default_member(node.parts, given)
    if node.kind == "record":
        return {
            name: _default(part, given[name], nullable=rule.nullable)
            if name in _typed(given, dict)
            else _absent(part, rule)
            for name, part, rule in zip(node.names, node.parts, node.rules, strict=True)
        }
    if node.kind == "array":
        return [_default(node.parts[0], each, nullable=True) for each in _typed(given, list)]
    if node.kind == "map":
        items = _typed(given, dict).items()
        return [(key, _default(node.parts[0], each, nullable=True)) for key, each in items]
    if node.kind in _BINARY:
        data = _typed(given, str).encode("latin-1")
        return decimal_of(node.scale)(data) if node.logical == "decimal" else data
    if node.kind in _INTEGERS:
        return _typed(given, int) * _unit("", node.logical)
    if node.kind in _FRACTIONS:
        return float(_typed(given, int, float))
    return _typed(given, bool if node.kind == "boolean" else str)


def _default_member(members: Sequence[AvroNode], given: Any) -> Any:
    for at, each in enumerate(members):
        try:
            return {f"member{at}": _default(each, given, nullable=False)}
        except (ValueError, TypeError):
            continue
    raise ValueError("no member of the union")


def _typed(given: Any, *kinds: type) -> Any:
    if type(given) not in kinds:
        raise ValueError(f"{given!r} is not of the type")
    return given
