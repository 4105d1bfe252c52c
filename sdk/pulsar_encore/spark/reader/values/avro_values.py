"""Values in Avro, each decoded with its writer's schema and resolved to the reader's schema.

Logical types are left to Arrow, which takes plain numbers for them, so that no Python object is
created per timestamp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import Any, Final, TypeAlias

import fastavro
import pyarrow as pa
from pyspark.sql.types import DataType

from ....errors import ConfigurationError
from .avro_resolution import decimal_of, resolved
from .avro_types import AvroNode, read_avro, shape_of, spark_type
from .value_decoder import Malformed, arrow, gathered

Convert: TypeAlias = Callable[[Any], Any]

WriterText: TypeAlias = Callable[[int], str]
"""Returns the Avro JSON of a schema version; ValueError says why that is not possible."""

MS: Final = 1000  # us


class AvroPart:
    """Decodes Avro.

    Args:
        definition: The reader's schema, in JSON; `of` names it in errors.
        only: The fields of a record to decode; None for all.
        writer_text: Returns the schema of a version.

    Raises:
        ConfigurationError: if `definition` is not a schema, or Spark has no type for it.
    """

    def __init__(
        self,
        definition: str,
        only: Sequence[str] | None,
        writer_text: WriterText,
        of: str = "valueSchema",
    ) -> None:
        schema, node = read_avro(definition, of)
        self._definition = definition
        self._writer_text = writer_text
        self._parsed = _parsed(schema, of)
        self._full_node = node
        if node.kind == "record" and only is not None:
            node = node.narrowed(set(only))
        self._node = node
        self.type: DataType = spark_type(node)
        self._arrow = arrow(self.type)
        self._convert = avro_converter(node)
        self._writers: dict[int, tuple[Any, Convert | None, str]] = {}

    def decode(
        self, data: Sequence[bytes | None], versions: Sequence[int]
    ) -> tuple[pa.Array, Malformed]:
        rows: list[object] = []
        add = rows.append
        malformed: Malformed = {}
        read = fastavro.schemaless_reader
        current: int | None = None
        writer: Any = None
        convert: Convert | None = None
        error_text = ""
        for at, (each, version) in enumerate(zip(data, versions, strict=True)):
            if each is None:
                add(None)
                continue
            if version != current:
                current = version
                writer, convert, error_text = self._writer(version)
            if error_text:
                malformed[at] = error_text
                add(None)
                continue
            buffer = BytesIO(each)
            try:
                row = read(buffer, writer, None)
                if buffer.tell() != len(each):
                    raise ValueError("bytes are left over")
                add(row if convert is None else convert(row))
            except Exception as error:  # fastavro raises errors of any class
                malformed[at] = f"no Avro of schema version {version}: {error!r}"
                add(None)
        return gathered(rows, self._arrow, malformed), malformed

    def _writer(self, version: int) -> tuple[Any, Convert | None, str]:
        """Return the writer's schema and the converter of its values, or an error text."""
        found = self._writers.get(version)
        if found is None:
            try:
                found = (*self._resolve(version), "")
            except ValueError as error:
                found = (None, None, str(error))
            self._writers[version] = found  # a failure too, until the task ends
        return found

    def _resolve(self, version: int) -> tuple[Any, Convert | None]:
        text = self._definition if version < 0 else self._writer_text(version)
        if text == self._definition:
            return self._parsed, self._convert
        try:
            schema, node = read_avro(text, "the writer's schema")
            convert = self._convert if node == self._full_node else resolved(node, self._node)
            return _parsed(schema, "the writer's schema"), convert
        except ConfigurationError as error:
            raise ValueError(str(error)) from error


def _parsed(schema: Any, of: str) -> Any:
    try:
        return fastavro.parse_schema(_bare(schema))
    except Exception as error:  # of any class
        raise ConfigurationError(f"{of} is no Avro schema: {error!r}") from error


def _bare(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_bare(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    bare = {key: each for key, each in schema.items() if key != "logicalType"}
    for key in ("type", "items", "values"):
        if isinstance(bare.get(key), dict | list):
            bare[key] = _bare(bare[key])
    if "fields" in bare:
        bare["fields"] = [_bare(each) for each in bare["fields"]]
    return bare


def avro_converter(node: AvroNode) -> Convert | None:
    """Return a converter from fastavro's objects to Arrow's; None if not needed."""
    if node.kind == "record":
        parts = zip(node.names, node.parts, strict=True)
        changed = [(name, made) for name, part in parts if (made := avro_converter(part))]
        return _record(changed) if changed else None
    if node.kind == "array":
        inner = avro_converter(node.parts[0])
        return inner and _array(inner)
    if node.kind == "map":
        return _map(avro_converter(node.parts[0]))
    if node.kind == "union":
        return _union(node)
    if node.logical == "decimal":
        return _decimal(node.scale)
    if node.logical.endswith("-millis"):
        return lambda value: None if value is None else value * MS
    return None


def _record(changed: list[tuple[str, Convert]]) -> Convert:
    def convert(value: Any) -> Any:
        if value is not None:
            for name, each in changed:
                value[name] = each(value[name])
        return value

    return convert


def _array(inner: Convert) -> Convert:
    return lambda value: None if value is None else [inner(each) for each in value]


def _map(inner: Convert | None) -> Convert:
    if inner is None:
        return lambda value: None if value is None else list(value.items())
    return lambda value: (
        None if value is None else [(key, inner(each)) for key, each in value.items()]
    )


def _union(node: AvroNode) -> Convert:
    """A struct with one member set, chosen by the type of the value."""
    members: Mapping[type, tuple[str, Convert | None]] = {
        shape_of(each): (f"member{i}", avro_converter(each)) for i, each in enumerate(node.parts)
    }

    def convert(value: Any) -> Any:
        if value is None:
            return None
        name, inner = members[type(value)]
        return {name: value if inner is None else inner(value)}

    return convert


def _decimal(scale: int) -> Convert:
    convert = decimal_of(scale)
    return lambda value: None if value is None else convert(value)
