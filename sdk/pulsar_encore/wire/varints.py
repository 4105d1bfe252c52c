"""Varints: numbers as protobuf writes them, for commands encoded without message objects."""

from __future__ import annotations

from typing import Final

SMALL_VARINTS: Final = [bytes((n,)) for n in range(0x80)] + [
    bytes((n & 0x7F | 0x80, n >> 7)) for n in range(0x80, 0x4000)
]
"""The varints of one and two bytes, by number. Nearly all entry ids and sizes are below 16,384."""


def varint(value: int) -> bytes:
    """Write a number. A negative number is written modulo 2^64, which takes ten bytes."""
    if 0 <= value < 0x4000:
        return SMALL_VARINTS[value]
    if 0 <= value < 0x20_0000:  # most sequence ids; faster than the loop
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    value &= 0xFFFF_FFFF_FFFF_FFFF
    out = bytearray()
    while value >= 0x4000:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out += SMALL_VARINTS[value]
    return bytes(out)
