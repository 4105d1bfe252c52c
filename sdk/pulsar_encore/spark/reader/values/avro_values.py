"""Values in Avro, each decoded with its writer's schema and converted to the reader's schema.

Logical types are left to Arrow, so that no Python object is created per timestamp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any, TypeAlias

import fastavro
import pyarrow as pa
from pyspark.sql.types import DataType

from ....errors import ConfigurationError
from ...compat import arrow_type
from .avro_resolution import Convert, conversion
from .avro_types import read_avro, spark_type
from .value_decoder import Malformed, to_array

WriterText: TypeAlias = Callable[[int], str]
"""Returns the Avro JSON of a schema version, or raises ValueError."""


class AvroPart:
    """Decodes Avro.

    Args:
        definition: The reader's schema, in JSON; `of` names it in errors.
        only: The fields of a record to decode; None for all.
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
        self._arrow = arrow_type(self.type)
        self._convert = conversion(node, node)
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
                add(row if row is None or convert is None else convert(row))
            except Exception as error:  # fastavro raises errors of any class
                malformed[at] = f"no Avro of schema version {version}: {error!r}"
                add(None)
        return to_array(rows, self._arrow, malformed), malformed

    def _writer(self, version: int) -> tuple[Any, Convert | None, str]:
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
            convert = self._convert if node == self._full_node else conversion(node, self._node)
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
