"""Primitive values, big-endian as in all clients. Types are as in the JVM connector."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from struct import Struct, unpack
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import types

from ...compat import arrow_type
from .value_decoder import Malformed, to_array

_DAY_MS: Final = 86_400_000
_DAY_US: Final = 86_400_000_000


class FixedType(NamedTuple):
    """A primitive type with a fixed length.

    `form` is the format for `struct`. `convert` takes its numbers; None if the value is the number.
    """

    type: types.DataType
    form: str
    convert: Callable[..., Any] | None = None


#: By the name in the schema registry.
FIXED: Final[Mapping[str, FixedType]] = {
    "bool": FixedType(types.BooleanType(), "B", bool),
    "int8": FixedType(types.ByteType(), "b"),
    "int16": FixedType(types.ShortType(), "h"),
    "int32": FixedType(types.IntegerType(), "i"),
    "int64": FixedType(types.LongType(), "q"),
    "float": FixedType(types.FloatType(), "f"),
    "double": FixedType(types.DoubleType(), "d"),
    "date": FixedType(types.DateType(), "q", lambda ms: ms // _DAY_MS),
    "time": FixedType(types.TimestampType(), "q", lambda ms: ms * 1000),
    "timestamp": FixedType(types.TimestampType(), "q", lambda ms: ms * 1000),
    "instant": FixedType(types.TimestampType(), "qi", lambda s, ns: s * 1_000_000 + ns // 1000),
    "localdate": FixedType(types.DateType(), "q"),
    "localtime": FixedType(
        types.LongType(), "q"
    ),  # ns of the day, because Spark 4.0 has no type for it
    "localdatetime": FixedType(
        types.TimestampNTZType(), "qq", lambda day, ns: day * _DAY_US + ns // 1000
    ),
}


class FixedPart:
    def __init__(self, kind: str) -> None:
        self._kind = kind
        fixed = FIXED[kind]
        self.type: types.DataType = fixed.type
        self._form, self._convert_numbers = fixed.form, fixed.convert
        self._arrow = arrow_type(self.type)
        self._struct = Struct(">" + self._form)

    def decode(
        self, data: Sequence[bytes | None], versions: Sequence[int]
    ) -> tuple[pa.Array, Malformed]:
        size, made = self._struct.size, self._convert_numbers
        malformed: Malformed = {}
        if made is None and all(each is not None and len(each) == size for each in data):
            found = unpack(f">{len(data)}{self._form}", b"".join(each or b"" for each in data))
            return to_array(list(found), self._arrow, malformed), malformed
        rows: list[object] = []
        for at, each in enumerate(data):
            if each is None:
                rows.append(None)
            elif len(each) != size:
                malformed[at] = f"{len(each)} bytes are no {self._kind}, which has {size}"
                rows.append(None)
            else:
                numbers = self._struct.unpack(each)
                rows.append(numbers[0] if made is None else made(*numbers))
        return to_array(rows, self._arrow, malformed), malformed


class StringPart:
    type: types.DataType = types.StringType()

    def decode(
        self, data: Sequence[bytes | None], versions: Sequence[int]
    ) -> tuple[pa.Array, Malformed]:
        array = pa.array(data, pa.binary())
        try:
            return array.cast(pa.string()), {}
        except pa.ArrowInvalid:
            pass
        malformed: Malformed = {}
        texts: list[str | None] = []
        for at, each in enumerate(data):
            try:
                texts.append(None if each is None else each.decode())
            except UnicodeDecodeError as error:
                malformed[at] = f"no text in UTF-8: {error}"
                texts.append(None)
        return pa.array(texts, pa.string()), malformed


class BytesPart:
    type: types.DataType = types.BinaryType()

    def decode(
        self, data: Sequence[bytes | None], versions: Sequence[int]
    ) -> tuple[pa.Array, Malformed]:
        return pa.array(data, pa.binary()), {}
