"""CRC-32C (Castagnoli), the checksum of entries and of topic lists; wraps one library."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from fastcrc import crc32

if TYPE_CHECKING:
    from collections.abc import Iterable

Data: TypeAlias = bytes | bytearray | memoryview
"""What this package reads bytes from."""


def crc32c(data: Data, before: int = 0) -> int:
    """CRC-32C of `data` as an unsigned 32-bit number; ``b"123456789"`` gives 0xe3069283.

    Args:
        data: What to check.
        before: The checksum of what stands before `data`, to go on from.
    """
    return crc32.iscsi(data, before)


def topics_hash(topics: Iterable[str]) -> str:
    """The hash by which client and broker compare lists of topics, in any order.

    CRC-32C of the sorted full names with commas between, as 8 hex digits of its little-endian
    bytes; ``00000000`` of no topics: `docs/notes/wire-protocol.md#topic-lists`.
    """
    return crc32c(",".join(sorted(topics)).encode()).to_bytes(4, "little").hex()
