"""CRC-32C (Castagnoli), the checksum of entries and of topic lists; wraps one library."""

from __future__ import annotations

from typing import TypeAlias

from fastcrc import crc32

Data: TypeAlias = bytes | bytearray | memoryview
"""What this package reads bytes from."""


def crc32c(data: Data) -> int:
    """CRC-32C of `data` as an unsigned 32-bit number; ``b"123456789"`` gives 0xe3069283."""
    return crc32.iscsi(data)
