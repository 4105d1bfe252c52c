"""Encoding of a record's columns as JSON or Avro.

JSON has every field, also nulls. Bytes are base64 and times are ISO 8601, as in Spark's `to_json`.
Decimals are rejected, because readers of JSON would round them. Avro has no header.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyspark.sql import types

from ...errors import ConfigurationError
from .arrays import listed

Encode: TypeAlias = Callable[[Sequence[pa.Array]], list[bytes]]
"""Encodes columns, in the order of the fields, to one value per row."""

_Convert: TypeAlias = Callable[[Any], Any]
_UNCHANGED: Final = (
    types.StringType,
    types.BooleanType,
    types.ByteType,
    types.ShortType,
    types.IntegerType,
    types.LongType,
    types.FloatType,
    types.DoubleType,
)


def encoder_of(
    value_format: str, fields: Sequence[types.StructField], value_schema: str | None
) -> Encode:
    if value_format == "json":
        return _json(fields)
    assert value_schema is not None  # checked with the options
    return _avro(fields, value_schema)


def _json(fields: Sequence[types.StructField]) -> Encode:
    conversions = [_converter(each.dataType, each.name) for each in fields]
    names = [each.name for each in fields]
    dump = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode

    def encode(columns: Sequence[pa.Array]) -> list[bytes]:
        lists = [_converted(*each) for each in zip(columns, conversions, names, strict=True)]
        try:
            return [
                dump(dict(zip(names, row, strict=True))).encode()
                for row in zip(*lists, strict=True)
            ]
        except ValueError as error:
            raise ConfigurationError(
                f"a row cannot be written as JSON ({error}): JSON has neither NaN nor infinity"
            ) from error

    return encode


def _converted(column: pa.Array, convert: _Convert | None, name: str) -> list[Any]:
    values = listed(column, name)
    return (
        values if convert is None else [None if each is None else convert(each) for each in values]
    )


def _converter(kind: types.DataType, name: str) -> _Convert | None:
    """Return a converter of values that are not null to JSON's; None if not needed."""
    if isinstance(kind, _UNCHANGED):
        return None
    simple = _SIMPLE.get(type(kind))
    if simple is not None:
        return simple
    if isinstance(kind, types.ArrayType):
        inner = _or_null(_converter(kind.elementType, name))
        return None if inner is None else lambda value: [inner(each) for each in value]
    if isinstance(kind, types.MapType) and isinstance(kind.keyType, types.StringType):
        convert_value = _or_null(_converter(kind.valueType, name)) or _identity
        return lambda pairs: {key: convert_value(value) for key, value in pairs}
    if isinstance(kind, types.StructType):
        converters = {
            each.name: _or_null(_converter(each.dataType, f"{name}.{each.name}")) or _identity
            for each in kind
        }
        return lambda row: {key: converters[key](value) for key, value in row.items()}
    raise ConfigurationError(
        f"the column {name} is {kind.simpleString()}, which valueFormat=json has no form for: "
        "cast it, to a string for example"
    )


def _or_null(convert: _Convert | None) -> _Convert | None:
    return None if convert is None else lambda value: None if value is None else convert(value)


def _identity(value: Any) -> Any:
    return value


def _time(value: datetime) -> str:
    text = value.astimezone(UTC).isoformat(timespec="microseconds").removesuffix("+00:00")
    head, _, micros = text.partition(".")
    return f"{head}.{micros[:3] if micros.endswith('000') else micros}Z"


def _local_time(value: datetime) -> str:
    text = value.isoformat(timespec="microseconds")
    return text[:-3] if text.endswith("000") else text


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


_SIMPLE: Final[dict[type[types.DataType], _Convert]] = {
    types.BinaryType: _base64,
    types.TimestampType: _time,
    types.TimestampNTZType: _local_time,
    types.DateType: date.isoformat,
}


def _avro(fields: Sequence[types.StructField], value_schema: str) -> Encode:
    try:
        from fastavro import parse_schema, schemaless_writer
    except ImportError as error:
        raise ConfigurationError(
            'valueFormat=avro needs fastavro: pip install "pulsar-encore[avro]"'
        ) from error
    schema = _record(value_schema)
    _check_fields(schema["fields"], fields)
    try:
        parsed = parse_schema(schema)
    except Exception as error:  # fastavro's errors have no common base class
        raise ConfigurationError(f"valueSchema cannot be used: {error}") from error
    names = [each.name for each in fields]

    def encode(columns: Sequence[pa.Array]) -> list[bytes]:
        lists = [each.to_pylist(maps_as_pydicts="lossy") for each in columns]
        return [write(dict(zip(names, row, strict=True))) for row in zip(*lists, strict=True)]

    def write(row: dict[str, Any]) -> bytes:
        out = io.BytesIO()
        try:
            schemaless_writer(out, parsed, row)
        except Exception as error:
            raise ConfigurationError(f"a row does not fit valueSchema: {error}") from error
        return out.getvalue()

    return encode


def _record(value_schema: str) -> dict[str, Any]:
    try:
        schema = json.loads(value_schema)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"valueSchema is no JSON: {error}") from error
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ConfigurationError('valueSchema must be an Avro record: {"type": "record", ...}')
    return schema


def _check_fields(wanted: Iterable[dict[str, Any]], given: Sequence[types.StructField]) -> None:
    by_name = {each["name"]: each for each in wanted}
    present = {each.name for each in given}
    extra = sorted(present - by_name.keys())
    missing = sorted(
        name for name, each in by_name.items() if name not in present and "default" not in each
    )
    if extra or missing:
        raise ConfigurationError(
            "the columns do not fit valueSchema: "
            + "; ".join(
                [f"it has no field {', '.join(extra)}"] * bool(extra)
                + [f"there is no column {', '.join(missing)}"] * bool(missing)
            )
        )
