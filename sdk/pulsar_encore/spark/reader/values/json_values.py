"""Values in JSON: parsed in blocks by Arrow, or one by one if a block cannot be parsed.

A value must yield the same result whatever its neighbours are. Parsing one by one defines the
result. Arrow is only used for types that it parses in the same way; it rejects all other input.

In a block, each value begins with ``{`` and ends with ``}``, and newlines, which JSON strings
cannot contain, separate the values. Each value of a block that parses is therefore at least one
document. If there are as many documents as values, each value is exactly one.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.json as pj
from pyspark.sql import types

from ...compat import arrow_type
from .avro_types import AvroNode
from .value_decoder import Malformed, to_array

Convert: TypeAlias = Callable[[Any], Any]

_SPACE: Final = b" \t\r\n"
# Blocks up to this size are parsed one by one to find malformed values.
_MAX_SMALL_BLOCK: Final = 512
_BITS: Final[dict[type[types.DataType], int]] = {
    types.ByteType: 8,
    types.ShortType: 16,
    types.IntegerType: 32,
    types.LongType: 64,
}
_S: Final = 1_000_000  # us
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DAY: Final = date(1970, 1, 1).toordinal()


class JsonPart:
    """Decodes JSON to a Spark type; `node` is its Avro schema in the registry, if any."""

    def __init__(self, kind: types.DataType, node: AvroNode | None = None) -> None:
        self.type: types.DataType = kind
        self._arrow = arrow_type(kind)
        self._convert = _converter(kind, node)
        self._parse_float = Decimal if _has_decimals(kind) else None
        self._parsed: pa.Schema | None = None
        self._cast_schema: pa.Schema | None = None
        schemas = _parsed(kind, node)
        if isinstance(kind, types.StructType) and kind.fields and schemas is not None:
            self._parsed, self._cast_schema = (pa.schema(list(each)) for each in schemas)

    def decode(
        self, data: Sequence[bytes | None], versions: Sequence[int]
    ) -> tuple[pa.Array, Malformed]:
        present = [each for each in data if each is not None]
        malformed: Malformed = {}
        array = pa.concat_arrays(self._arrays(present, 0, malformed)) if present else None
        if array is None:
            return pa.nulls(len(data), self._arrow), malformed
        if len(present) == len(data):
            return array, malformed
        numbering = iter(range(len(present)))
        indexes = [None if each is None else next(numbering) for each in data]
        numbers = [at for at, each in enumerate(data) if each is not None]
        renumbered = {numbers[at]: reason for at, reason in malformed.items()}
        return array.take(pa.array(indexes, pa.int64())), renumbered

    def _arrays(self, data: list[bytes], first: int, malformed: Malformed) -> list[pa.Array]:
        """Return values as arrays; `first` is the index of the first value in all values."""
        block = self._block(data)
        if block is not None:
            return [block]
        if len(data) <= _MAX_SMALL_BLOCK or self._parsed is None:
            return [self._singly(data, first, malformed)]
        found = []
        for at in range(0, len(data), _MAX_SMALL_BLOCK):
            found += self._arrays(data[at : at + _MAX_SMALL_BLOCK], first + at, malformed)
        return found

    def _block(self, data: list[bytes]) -> pa.Array | None:
        if self._parsed is None:
            return None
        if not all(each[:1] == b"{" and each[-1:] == b"}" for each in data):
            data = [each.strip(_SPACE) for each in data]
            # Arrow crashes without an error if the first document is null.
            if not all(each[:1] == b"{" and each[-1:] == b"}" for each in data):
                return None
        block = b"\n".join(data)
        try:
            block.decode()  # Arrow does not check the encoding
            table = pj.read_json(
                pa.BufferReader(block),
                pj.ReadOptions(use_threads=False, block_size=len(block) + 1),
                pj.ParseOptions(
                    explicit_schema=self._parsed,
                    newlines_in_values=True,
                    unexpected_field_behavior="ignore",
                ),
            )
            if table.num_rows != len(data):
                return None
            table = table.select(self._parsed.names).cast(self._cast_schema)
            table = table.cast(pa.schema(list(self._arrow)))
        except (pa.ArrowException, UnicodeDecodeError):
            return None
        columns = [each.combine_chunks() for each in table.columns]
        return pa.StructArray.from_arrays(columns, fields=list(self._arrow))

    def _singly(self, data: list[bytes], first: int, malformed: Malformed) -> pa.Array:
        rows: list[object] = []
        failed: Malformed = {}
        convert, parse_float = self._convert, self._parse_float
        for at, each in enumerate(data):
            try:
                row = json.loads(each.decode(), parse_float=parse_float)
                rows.append(None if row is None else convert(row))
            except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
                failed[at] = f"no JSON of the schema: {error}"
                rows.append(None)
        array = to_array(rows, self._arrow, failed)
        malformed.update((first + at, reason) for at, reason in failed.items())
        return array


def _has_decimals(kind: types.DataType) -> bool:
    if isinstance(kind, types.StructType):
        return any(_has_decimals(each.dataType) for each in kind)
    if isinstance(kind, types.ArrayType):
        return _has_decimals(kind.elementType)
    if isinstance(kind, types.MapType):
        return _has_decimals(kind.valueType)
    return isinstance(kind, types.DecimalType)


def _part(node: AvroNode | None, at: int) -> AvroNode | None:
    return None if node is None else node.parts[at]


# The type that Arrow parses, and the type that it is cast to before the type for Spark. None if
# Arrow cannot parse a type or parses it differently.


def _parsed(kind: types.DataType, node: AvroNode | None) -> tuple[pa.DataType, pa.DataType] | None:
    if isinstance(kind, types.StructType):
        if node is not None and node.kind == "union":
            return None
        fields = [_parsed(each.dataType, _part(node, at)) for at, each in enumerate(kind)]
        if not fields:
            return None
        first, second = [], []
        for each, made in zip(kind, fields, strict=True):
            if made is None:
                return None
            first.append(pa.field(each.name, made[0]))
            second.append(pa.field(each.name, made[1]))
        return pa.struct(first), pa.struct(second)
    if isinstance(kind, types.ArrayType):
        items = _parsed(kind.elementType, _part(node, 0))
        if items is None:
            return None
        item = arrow_type(kind).value_field
        return pa.list_(item.with_type(items[0])), pa.list_(item.with_type(items[1]))
    if isinstance(kind, types.TimestampType | types.TimestampNTZType):
        if node is None:
            return pa.string(), pa.string()
        zone = "UTC" if isinstance(kind, types.TimestampType) else None
        unit = "ms" if node.logical.endswith("-millis") else "us"
        return pa.int64(), pa.timestamp(unit, tz=zone)
    if isinstance(kind, types.DateType):
        return (pa.string(), pa.string()) if node is None else (pa.int32(), pa.int32())
    if isinstance(kind, types.MapType | types.DecimalType | types.BinaryType | types.NullType):
        return None
    return arrow_type(kind), arrow_type(kind)


def _converter(kind: types.DataType, node: AvroNode | None) -> Convert:
    if isinstance(kind, types.StructType):
        if node is not None and node.kind == "union":
            return _member(kind, node)
        return _struct(
            [(f.name, _converter(f.dataType, _part(node, i))) for i, f in enumerate(kind)]
        )
    if isinstance(kind, types.ArrayType):
        return _list(_converter(kind.elementType, _part(node, 0)))
    if isinstance(kind, types.MapType):
        return _map(_converter(kind.valueType, _part(node, 0)))
    if type(kind) in _BITS:
        return _integer(_BITS[type(kind)])
    if isinstance(kind, types.DecimalType):
        return _decimal(kind)
    if isinstance(kind, types.TimestampType | types.TimestampNTZType):
        return _timestamp(node, zoned=isinstance(kind, types.TimestampType))
    return _LEAVES[type(kind)]


def _mismatch(value: Any, wanted: str) -> ValueError:
    return ValueError(f"{json.dumps(value, default=str)[:40]} is no {wanted}")


def _struct(fields: list[tuple[str, Convert]]) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not dict:
            raise _mismatch(value, "object")
        return {
            name: None if (found := value.get(name)) is None else inner(found)
            for name, inner in fields
        }

    return convert


def _member(kind: types.StructType, node: AvroNode) -> Convert:
    """Use the first member of a union that accepts the value."""
    inner = [
        (field.name, _converter(field.dataType, part))
        for field, part in zip(kind, node.parts, strict=True)
    ]

    def convert(value: Any) -> Any:
        for name, each in inner:
            try:
                return {name: each(value)}
            except ValueError:
                continue
        raise _mismatch(value, "member of its union")

    return convert


def _list(inner: Convert) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not list:
            raise _mismatch(value, "array")
        return [None if each is None else inner(each) for each in value]

    return convert


def _map(inner: Convert) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not dict:
            raise _mismatch(value, "object")
        return [(key, None if each is None else inner(each)) for key, each in value.items()]

    return convert


def _integer(bits: int) -> Convert:
    limit = 1 << (bits - 1)

    def convert(value: Any) -> Any:
        if type(value) is not int or not -limit <= value < limit:
            raise _mismatch(value, f"integer of {bits} bits")
        return value

    return convert


def _number(value: Any) -> Any:
    if type(value) not in (int, float, Decimal):
        raise _mismatch(value, "number")
    return float(value)


def _decimal(kind: types.DecimalType) -> Convert:
    limit = kind.precision - kind.scale

    def convert(value: Any) -> Any:
        if type(value) not in (int, Decimal, str):
            raise _mismatch(value, kind.simpleString())
        found = Decimal(value)
        _, digits, exponent = found.as_tuple()
        if not isinstance(exponent, int):  # NaN and infinity
            raise _mismatch(value, kind.simpleString())
        excess_digits = max(0, -kind.scale - exponent)
        if any(digits[-excess_digits:] if excess_digits else ()) or (
            found and len(digits) + exponent > limit
        ):
            raise _mismatch(value, kind.simpleString())
        return found or Decimal()

    return convert


def _text(value: Any) -> Any:
    if type(value) is not str:
        raise _mismatch(value, "string")
    return value


def _boolean(value: Any) -> Any:
    if type(value) is not bool:
        raise _mismatch(value, "boolean")
    return value


def _bytes(value: Any) -> Any:
    """Decode base64, the form of bytes in JSON of Java's clients and Spark."""
    return base64.b64decode(_text(value), validate=True)


def _date(value: Any) -> Any:
    """Return days since the epoch, from a number or an ISO 8601 date."""
    if type(value) is int:
        return _days(value)
    return date.fromisoformat(_text(value)).toordinal() - _FIRST_DAY


_days: Final = _integer(32)


def _timestamp(node: AvroNode | None, *, zoned: bool) -> Convert:
    """Return a converter of ISO 8601 texts and numbers to us since the epoch.

    A number is in the unit of the schema; without a schema it is in seconds, as in Spark. Text
    without a zone is in UTC.
    """
    if node is None:
        unit = _S
    else:
        unit = 1000 if node.logical.endswith("-millis") else 1
    whole = _integer(64)

    def convert(value: Any) -> Any:
        if type(value) is not str:
            return whole(whole(value) * unit)
        found = datetime.fromisoformat(value)
        if found.tzinfo is None:
            found = found.replace(tzinfo=UTC)
        elif not zoned:
            raise _mismatch(value, "time without a zone")
        elapsed = found - _EPOCH
        return (elapsed.days * 86_400 + elapsed.seconds) * _S + elapsed.microseconds

    return convert


def _reject(value: Any) -> Any:
    raise _mismatch(value, "null")


_LEAVES: Final[dict[type[types.DataType], Convert]] = {
    types.BooleanType: _boolean,
    types.FloatType: _number,
    types.DoubleType: _number,
    types.StringType: _text,
    types.BinaryType: _bytes,
    types.DateType: _date,
    types.NullType: _reject,
}
