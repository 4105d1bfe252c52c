"""Schemas as brokers keep them. Values; no I/O.

Owns `SchemaDefinition`, what is decoded with, and `KnownSchema`, which a copy is sent with.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class SchemaDefinition(NamedTuple):
    """A version of a topic's schema.

    Attributes:
        kind: Its type, in the protocol's or in stock's spelling.
        text: What it says, of Avro JSON.
    """

    kind: str
    text: str


class KnownSchema:
    """A schema that a broker has already: for bytes that were encoded with it (`schema_of`).

    Args:
        info: What the transport that fetched it takes as `schema_info()`.
        key_value: Partition keys are half of the value.
    """

    def __init__(self, info: Any, *, key_value: bool) -> None:
        self._info = info
        self.key_value: bool = key_value

    def schema_info(self) -> Any:
        """As the transport takes it."""
        return self._info

    def encode(self, data: bytes) -> bytes:
        """The bytes, which are encoded."""
        return data

    def decode_message(self, message: Any) -> bytes:
        """The bytes as they are."""
        data: bytes = message.data()
        return data
