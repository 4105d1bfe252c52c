"""CRC-32C (Castagnoli), the checksum of entries and of topic lists; wraps one library."""

from __future__ import annotations

from fastcrc import crc32


def crc32c(data: bytes | bytearray | memoryview) -> int:
    """CRC-32C of `data` as an unsigned 32-bit number; ``b"123456789"`` gives 0xe3069283."""
    return crc32.iscsi(data)
