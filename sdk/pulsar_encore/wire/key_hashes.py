"""The hashes by which keys choose partitions and consumers, as each client computes them.

Results have 31 bits. None of these functions may ever change: messages of one key would be on two
partitions.
"""

from __future__ import annotations

_U32 = 0xFFFFFFFF
_U64 = 0xFFFFFFFFFFFFFFFF
_U31 = 0x7FFFFFFF


def java_string(key: str) -> int:
    """`String.hashCode` of Java, over UTF-16 units: the default of Java's client."""
    h = 0
    if key.isascii():
        for unit in key.encode():
            h = (31 * h + unit) & _U32
        return h & _U31
    data = key.encode("utf-16-le", "surrogatepass")
    for at in range(0, len(data), 2):
        h = (31 * h + (data[at] | data[at + 1] << 8)) & _U32
    return h & _U31


def boost(key: bytes) -> int:
    """`boost::hash` of a `std::string`, Boost 1.81 or later on 64 bits.

    The default of the C++ and Python clients; `pulsar-client` 3.13.0 computes it. A client with an
    older Boost sends the same key to another partition.
    """
    step, factor = 0x9E3779B97F4A7C15, 0xDF442D22CE4859B9
    size = len(key)
    weight = _fold(step * factor)
    h = weight ^ size
    end = size & ~7
    for at in range(0, end, 8):
        weight = (weight + step) & _U64
        word = int.from_bytes(key[at : at + 8], "little")
        h ^= _fold((word + weight & _U64) * factor)
    tail = key[end:]
    left = len(tail)
    if left >= 4:
        # Two words of four bytes, which overlap because fewer than eight bytes are left.
        word = int.from_bytes(tail[-4:], "little") << (left - 4) * 8
        word |= int.from_bytes(tail[:4], "little")
    elif left:
        first, last = (left - 1) & 2, left >> 1
        word = tail[first] << first * 8 | tail[last] << last * 8 | tail[0]
    else:
        word = 0
    weight = (weight + step) & _U64
    h ^= _fold((word + weight & _U64) * factor)
    return _fold((h + weight & _U64) * factor) & _U31


def _fold(product: int) -> int:
    return product & _U64 ^ product >> 64


def murmur3(data: bytes) -> int:
    """MurmurHash3 x86 32 bit, seed 0: Key_Shared, Failover, and Murmur3_32 producers."""
    h = 0
    end = len(data) & ~3
    for at in range(0, end, 4):
        k = int.from_bytes(data[at : at + 4], "little") * 0xCC9E2D51 & _U32
        k = (k << 15 | k >> 17) * 0x1B873593 & _U32
        h ^= k
        h = ((h << 13 | h >> 19) & _U32) * 5 + 0xE6546B64 & _U32
    if end < len(data):
        k = int.from_bytes(data[end:], "little") * 0xCC9E2D51 & _U32
        h ^= (k << 15 | k >> 17) * 0x1B873593 & _U32
    h ^= len(data)
    h = (h ^ h >> 16) * 0x85EBCA6B & _U32
    h = (h ^ h >> 13) * 0xC2B2AE35 & _U32
    return (h ^ h >> 16) & _U31
