"""A parser for `valueSchema` in Spark's DDL or JSON.

PySpark's own DDL parser needs the JVM, which the processes that plan a read do not have.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from pyspark.sql import types

from ....errors import ConfigurationError
from ...option_parsers import nearest

_TOKEN: Final = re.compile(
    r"\s*(`(?:[^`]|``)+`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\w+|[<>(),:])"
)
_SIMPLE: Final[Mapping[str, types.DataType]] = {
    "boolean": types.BooleanType(),
    "tinyint": types.ByteType(),
    "byte": types.ByteType(),
    "smallint": types.ShortType(),
    "short": types.ShortType(),
    "int": types.IntegerType(),
    "integer": types.IntegerType(),
    "bigint": types.LongType(),
    "long": types.LongType(),
    "float": types.FloatType(),
    "real": types.FloatType(),
    "double": types.DoubleType(),
    "string": types.StringType(),
    "binary": types.BinaryType(),
    "date": types.DateType(),
    "timestamp": types.TimestampType(),
    "timestamp_ltz": types.TimestampType(),
    "timestamp_ntz": types.TimestampNTZType(),
}
_DECIMAL: Final = ("decimal", "dec", "numeric")
_KNOWN: Final = (*_SIMPLE, *_DECIMAL, "array", "map", "struct")
_MAX_DIGITS: Final = 38


def read_ddl(text: str) -> types.StructType:
    """Parse ``id BIGINT, name STRING``, ``struct<id: bigint>``, or the JSON of a `StructType`."""
    if text.lstrip().startswith("{"):
        return _of_json(text)
    reader = _Parser(text)
    try:
        found = reader.struct() if reader.is_next("struct", "<") else reader.fields()
    except RecursionError:
        raise ConfigurationError("valueSchema has types in types, too many to be read") from None
    reader.end()
    return found


def _of_json(text: str) -> types.StructType:
    try:
        read = types.StructType.fromJson(json.loads(text))
    except Exception as error:  # PySpark raises errors of any class
        raise ConfigurationError(f"valueSchema is no JSON of a StructType: {error!r}") from error
    found = _nullable(read)
    assert isinstance(found, types.StructType)
    return found


def _nullable(kind: types.DataType) -> types.DataType:
    """Return the type with everything nullable, or raise ConfigurationError."""
    if isinstance(kind, types.StructType):
        return types.StructType(
            [types.StructField(each.name, _nullable(each.dataType)) for each in kind]
        )
    if isinstance(kind, types.ArrayType):
        return types.ArrayType(_nullable(kind.elementType))
    if isinstance(kind, types.MapType) and kind.keyType == types.StringType():
        return types.MapType(types.StringType(), _nullable(kind.valueType))
    if isinstance(kind, types.DecimalType) or kind in _SIMPLE.values():
        return kind
    raise ConfigurationError(f"valueSchema: no value is read as {kind.simpleString()}")


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        at, end = 0, len(text.rstrip())
        while at < end:
            found = _TOKEN.match(text, at)
            if found is None:
                raise self._error(f"{text[at:].strip()[:20]!r} is no part of one")
            self._tokens.append(found[1])
            at = found.end()
        self._at = 0

    def _error(self, reason: str) -> ConfigurationError:
        return ConfigurationError(
            f"valueSchema must be fields in Spark's DDL, such as 'id BIGINT, name STRING', got "
            f"{self._text!r}: {reason}"
        )

    def _next(self) -> str:
        if self._at >= len(self._tokens):
            raise self._error("it ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def is_next(self, *words: str) -> bool:
        ahead = self._tokens[self._at : self._at + len(words)]
        return [each.lower() for each in ahead] == list(words)

    def _skip(self, *words: str) -> bool:
        found = self.is_next(*words)
        self._at += len(words) * found
        return found

    def _expect(self, word: str) -> None:
        if not self._skip(word):
            raise self._error(f"{word!r} is missing after {' '.join(self._tokens[: self._at])!r}")

    def end(self) -> None:
        if self._at < len(self._tokens):
            raise self._error(f"{self._tokens[self._at]!r} is too much")

    def fields(self) -> types.StructType:
        found: dict[str, types.StructField] = {}
        while True:
            name = self._name()
            if name in found:
                raise self._error(f"{name} is there twice")
            self._skip(":")
            found[name] = types.StructField(name, self._type())
            self._skip("not", "null")  # as in all sources of Spark, everything may be null
            if self._skip("comment"):
                self._next()
            if not self._skip(","):
                return types.StructType(list(found.values()))

    def _name(self) -> str:
        token = self._next()
        if token[0] == "`":
            return token[1:-1].replace("``", "`")
        if not token[0].isalnum() and token[0] != "_":
            raise self._error(f"{token!r} is no name")
        return token

    def struct(self) -> types.StructType:
        self._expect("struct")
        self._expect("<")
        if self._skip(">"):
            return types.StructType([])
        found = self.fields()
        self._expect(">")
        return found

    def _type(self) -> types.DataType:
        if self.is_next("struct"):
            return self.struct()
        word = self._next()
        kind = word.lower()
        if kind == "array":
            self._expect("<")
            items = self._type()
            self._expect(">")
            return types.ArrayType(items)
        if kind == "map":
            self._expect("<")
            if not self._skip("string"):
                raise self._error("keys of a map are STRING")
            self._expect(",")
            values = self._type()
            self._expect(">")
            return types.MapType(types.StringType(), values)
        if kind in _DECIMAL:
            return self._decimal()
        if kind not in _SIMPLE:
            raise self._error(
                f"no value is read as {word!r}{nearest(kind, _KNOWN)}; there are "
                + ", ".join(_KNOWN)
            )
        return _SIMPLE[kind]

    def _decimal(self) -> types.DecimalType:
        digits, scale = 10, 0
        if self._skip("("):
            digits = self._number()
            if self._skip(","):
                scale = self._number()
            self._expect(")")
        if not (1 <= digits <= _MAX_DIGITS and scale <= digits):
            raise self._error(f"DECIMAL({digits},{scale}) must have 1 to 38 digits")
        return types.DecimalType(digits, scale)

    def _number(self) -> int:
        token = self._next()
        if not token.isdecimal():
            raise self._error(f"{token!r} is no number of digits")
        return int(token)
