"""What becomes of a message's value: columns of Arrow.

Owns `Values` and its kinds. What cannot be decoded ends the query, is left out, or is null with its
bytes beside it, as the option `mode` says (`FAILFAST`, `DROPMALFORMED`, `PERMISSIVE`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa
from pyspark.sql.types import BinaryType, StringType, StructField

from ...errors import ConfigurationError
from ...message import RawMessage
from ..columns import VALUE
from ..errors import MalformedValueError
from ..options import Shape


class Values(Protocol):
    """Decodes values."""

    def fields(self) -> list[StructField]:
        """The columns that it makes."""

    def note(self, messages: Sequence[RawMessage]) -> None:
        """These messages' values are among the next that `columns` gets."""

    def columns(self, data: list[bytes | None]) -> tuple[dict[str, pa.Array], list[bool] | None]:
        """The columns of some values, by name, and which rows stay; None for all.

        Raises:
            MalformedValueError: One cannot be decoded, and the mode is FAILFAST.
        """


class RawValues:
    """The bytes as they are."""

    def fields(self) -> list[StructField]:
        return [StructField(VALUE, BinaryType())]

    def note(self, messages: Sequence[RawMessage]) -> None:
        """Nothing but their values is needed."""

    def columns(self, data: list[bytes | None]) -> tuple[dict[str, pa.Array], list[bool] | None]:
        return {VALUE: pa.array(data, pa.binary())}, None


class StringValues(RawValues):
    """Text in UTF-8.

    Args:
        mode: What becomes of what is none; without a column for it PERMISSIVE is null.
    """

    def __init__(self, mode: str) -> None:
        self._mode = mode

    def fields(self) -> list[StructField]:
        return [StructField(VALUE, StringType())]

    def columns(self, data: list[bytes | None]) -> tuple[dict[str, pa.Array], list[bool] | None]:
        try:
            return {VALUE: pa.array(data, pa.binary()).cast(pa.string())}, None
        except pa.ArrowInvalid as error:
            if self._mode == "FAILFAST":
                raise MalformedValueError("a value is no text in UTF-8 (mode=FAILFAST)") from error
        texts = [_text(each) for each in data]
        kept = [text is not None or each is None for text, each in zip(texts, data, strict=True)]
        array = {VALUE: pa.array(texts, pa.string())}
        return array, kept if self._mode == "DROPMALFORMED" else None


def _text(data: bytes | None) -> str | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return None


def values_of(shape: Shape) -> Values:
    """The decoder that the options ask for.

    Raises:
        ConfigurationError: There is none.
    """
    if shape.value_format == "raw":
        return RawValues()
    if shape.value_format == "string":
        return StringValues(shape.mode)
    raise ConfigurationError(f"valueFormat={shape.value_format} is not there yet")
