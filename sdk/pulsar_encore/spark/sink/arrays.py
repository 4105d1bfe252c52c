"""Conversion of whole Arrow columns to lists: row by row would take several times longer."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa

from ...errors import ConfigurationError


def bytes_of(column: pa.Array) -> list[bytes | None]:
    """Return bytes, and text as UTF-8."""
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    found: list[bytes | None] = column.to_pylist()
    return found


def texts_of(column: pa.Array, name: str) -> list[str | None]:
    """Return text, and bytes decoded as UTF-8."""
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        text = pa.string() if pa.types.is_binary(column.type) else pa.large_string()
        try:
            column = column.cast(text)
        except pa.ArrowInvalid as error:
            raise ConfigurationError(
                f"{name} has bytes that are no text in UTF-8, and textKeys=true says it is text"
            ) from error
    found: list[str | None] = listed(column, name)
    return found


def listed(column: pa.Array, name: str) -> list[Any]:
    """Return Python values; ConfigurationError for text that is not UTF-8, which Spark allows."""
    try:
        found: list[Any] = column.to_pylist()
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"{name} has a text that is not UTF-8: {bytes(error.object)[:40]!r}; make it binary, "
            "or leave the row out"
        ) from error
    return found


def millis_of(column: pa.Array) -> list[int | None]:
    """Return timestamps in ms since the epoch, rounded down."""
    whole = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    micros: list[int | None] = whole.to_pylist()
    if whole.null_count:
        return [None if each is None else each // 1000 for each in micros]
    return [each // 1000 for each in micros if each is not None]


def maps_of(column: pa.MapArray, name: str) -> list[dict[str, str] | None]:
    """Return maps from text to text, and None for an empty map. A null value is an error."""
    keys, values = listed(column.keys, name), listed(column.items, name)
    spans = list(pairwise(column.offsets.to_pylist()))
    found = [
        dict(zip(keys[start:end], values[start:end], strict=True)) or None for start, end in spans
    ]
    if column.null_count:
        valid = column.is_valid().to_pylist()
        found = [each if there else None for each, there in zip(found, valid, strict=True)]
    if column.items.null_count:
        for row in found:
            for key, value in (row or {}).items():
                if value is None:
                    raise ConfigurationError(
                        f"{name} has the property {key!r} with null as its value: leave it out, or "
                        "give it a text"
                    )
    return found
