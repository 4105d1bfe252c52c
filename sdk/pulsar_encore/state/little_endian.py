"""Arrays of numbers as little-endian bytes, the byte order of all files."""

from __future__ import annotations

import sys
from array import array


def to_bytes(numbers: array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


def from_bytes(typecode: str, data: bytes) -> array[int]:
    numbers = array(typecode, data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
