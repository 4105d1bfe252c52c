"""The meaning of the input columns, and checks of their types.

Spark accepts any schema. A column that would not be sent is an error when the query is planned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ...errors import ConfigurationError
from ..option_parsers import nearest
from ..option_table import DEAD_LETTER, PRODUCE, RECONSUME
from ..source_columns import FULL, LETTER, VALUE
from .sink_options import SinkOptions

TOPIC, KEY, ORDERING_KEY, EVENT_TIME = "topic", "key", "orderingKey", "eventTime"
KEY_IS_BYTES = "keyIsBytes"
PROPERTIES, AFTER_MS, AT, CLUSTERS = (
    "messageProperties",
    "deliverAfterMs",
    "deliverAt",
    "replicationClusters",
)
MESSAGE_ID, SCHEMA_VERSION = "messageId", "schemaVersion"

_TEXT: Final = StringType()
_BYTES: Final = BinaryType()
_TYPES: Final[Mapping[str, tuple[DataType, ...]]] = {
    TOPIC: (_TEXT,),
    KEY: (_BYTES, _TEXT),
    KEY_IS_BYTES: (BooleanType(),),
    ORDERING_KEY: (_BYTES, _TEXT),
    EVENT_TIME: (TimestampType(),),
    PROPERTIES: (MapType(_TEXT, _TEXT),),
    AFTER_MS: (LongType(), IntegerType()),
    AT: (TimestampType(),),
    CLUSTERS: (ArrayType(_TEXT),),
    MESSAGE_ID: (_BYTES,),
    SCHEMA_VERSION: (_BYTES,),
}
_COMMON_KEYS: Final = (TOPIC, KEY, KEY_IS_BYTES, ORDERING_KEY, EVENT_TIME, PROPERTIES)
_PRODUCE_KEYS: Final = (*_COMMON_KEYS, AFTER_MS, AT, CLUSTERS)
_COPY_KEYS: Final = (*_COMMON_KEYS, MESSAGE_ID, SCHEMA_VERSION)
_REQUIRED_COPY_KEYS: Final = (TOPIC, MESSAGE_ID, PROPERTIES)
EVIDENCE: Final = ("errorClass", "errorMessage", "errorStack", "reason")
"""Columns of the job that describe a row's failure. They have no prefix."""

# Columns of the source that describe the position of a message and not its content.
_IGNORED_KEYS: Final = frozenset(each.key for each in FULL + LETTER)


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """The use of the columns of a write.

    Attributes:
        values: Columns of the value: one column of raw bytes, or the fields of a record.
        metadata: Names of the other columns by key, which is the name without prefix.
        evidence: The columns of `EVIDENCE` that exist.
    """

    values: tuple[StructField, ...]
    metadata: Mapping[str, str]
    evidence: tuple[str, ...] = ()

    def name(self, key: str) -> str | None:
        return self.metadata.get(key)


def layout_of(schema: StructType, options: SinkOptions) -> ColumnLayout:
    prefix, copies = options.prefix, options.mode != PRODUCE
    known = _COPY_KEYS if copies else _PRODUCE_KEYS
    value_fields: list[StructField] = []
    metadata: dict[str, str] = {}
    evidence: list[str] = []
    seen: set[str] = set()
    for field in schema:
        if field.name in seen:
            raise ConfigurationError(f"the column {field.name} is there twice: rename one")
        seen.add(field.name)
        key = field.name.removeprefix(prefix)
        if not field.name.startswith(prefix):
            if options.mode in (RECONSUME, DEAD_LETTER) and field.name in EVIDENCE:
                _check(field, (_TEXT,))
                evidence.append(field.name)
            else:
                value_fields.append(field)
        elif key in known:
            _check(field, _TYPES[key])
            metadata[key] = field.name
        elif key not in _IGNORED_KEYS:
            raise ConfigurationError(_unknown(field.name, prefix, known, options.mode))
    if AFTER_MS in metadata and AT in metadata:
        raise ConfigurationError(f"give {metadata[AFTER_MS]} or {metadata[AT]}, not both")
    _check_needed(metadata, options)
    if options.value_format == "raw":
        value_fields = [_raw_value(value_fields, options.mode)]
    elif not value_fields:
        raise ConfigurationError(
            f"valueFormat={options.value_format} encodes the columns without the prefix "
            f"{prefix!r}, and there are none"
        )
    return ColumnLayout(tuple(value_fields), metadata, tuple(evidence))


def _unknown(name: str, prefix: str, known: tuple[str, ...], mode: str) -> str:
    names = [prefix + each for each in known]
    return (
        f"the column {name} has no meaning for sinkMode={mode}{nearest(name, names)}: known are "
        f"{', '.join(names)}; drop it, or set metadataPrefix if it belongs to the value"
    )


def _check(field: StructField, types: tuple[DataType, ...]) -> None:
    kind = field.dataType
    # A string may have a collation. Nullability inside of maps and arrays does not matter.
    if not any(
        isinstance(kind, type(each)) and _plain(kind) == each.simpleString() for each in types
    ):
        wanted = " or ".join(each.simpleString() for each in types)
        raise ConfigurationError(
            f"the column {field.name} must be {wanted}, it is {kind.simpleString()}: cast it"
        )


def _plain(kind: DataType) -> str:
    return "string" if isinstance(kind, StringType) else kind.simpleString()


def _check_needed(metadata: Mapping[str, str], options: SinkOptions) -> None:
    prefix = options.prefix
    if options.mode == PRODUCE:
        if options.topic is None and TOPIC not in metadata:
            raise ConfigurationError(
                f"rows have no destination: set the option topic, or add a column {prefix}{TOPIC}"
            )
        return
    missing = [prefix + each for each in _REQUIRED_COPY_KEYS if each not in metadata]
    if missing:
        raise ConfigurationError(
            f"sinkMode={options.mode} copies messages that were read, and needs their columns "
            f"{', '.join(prefix + each for each in _REQUIRED_COPY_KEYS)}; missing are "
            f"{', '.join(missing)}"
        )


def _raw_value(value_fields: list[StructField], mode: str) -> StructField:
    value = next((each for each in value_fields if each.name == VALUE), None)
    if value is None:
        raise ConfigurationError(
            f"there is no column {VALUE} of type binary or string"
            + ("; to send a record of columns set valueFormat=json" if mode == PRODUCE else "")
        )
    _check(value, (_BYTES, _TEXT))
    others = [each.name for each in value_fields if each is not value]
    if others:
        raise ConfigurationError(
            f"the columns {', '.join(others)} would not be sent: drop them"
            + (f", or set valueFormat=json and rename {VALUE}" if mode == PRODUCE else "")
        )
    return value


def check_keys(schema: StructType, layout: ColumnLayout, options: SinkOptions) -> None:
    name = layout.name(KEY)
    if options.mode == PRODUCE or name is None or options.text_keys is not None:
        return
    if layout.name(KEY_IS_BYTES) is not None:
        return
    if isinstance(schema[name].dataType, BinaryType):
        raise ConfigurationError(
            f"{name} is binary, and keys that were sent as text and as bytes look the same there: "
            f"keep the source's column {options.prefix}{KEY_IS_BYTES}, or set "
            "textKeys=true (as of most clients) or textKeys=false (Java's keyBytes)"
        )
