"""A schema that a broker has already."""

from __future__ import annotations

from typing import Any


class KnownSchema:
    """A schema that the broker already has, for bytes that were encoded with it (`schema_of`).

    Args:
        key_value: True if partition keys are half of the value.
    """

    def __init__(self, info: Any, *, key_value: bool) -> None:
        self._info = info
        self.key_value: bool = key_value

    def schema_info(self) -> Any:
        return self._info

    def encode(self, data: bytes) -> bytes:
        """Return the bytes unchanged, because they are encoded."""
        return data

    def decode_message(self, message: Any) -> bytes:
        data: bytes = message.data()
        return data
