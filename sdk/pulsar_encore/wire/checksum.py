"""CRC-32C (Castagnoli), the checksum of entries and of topic lists. Wraps the package `fastcrc`."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from fastcrc import crc32

if TYPE_CHECKING:
    from collections.abc import Iterable

Data: TypeAlias = bytes | bytearray | memoryview
"""The types that this package reads bytes from."""


def crc32c(data: Data, before: int = 0) -> int:
    """Return the CRC-32C of `data`, continuing from the checksum `before`."""
    return crc32.iscsi(data, before)


def topics_hash(topics: Iterable[str]) -> str:
    """Return the hash by which client and broker compare lists of topics, in any order.

    It is the CRC-32C of the sorted full names with commas between them, as 8 hex digits of its
    little-endian bytes; ``00000000`` for no topics (`docs/notes/wire-protocol.md#topic-lists`).
    """
    return crc32c(",".join(sorted(topics)).encode()).to_bytes(4, "little").hex()
