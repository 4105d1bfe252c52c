"""Frames on disk: magic, version, length and CRC-32 of a whole value, and records in a row."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from ...errors import StateDamagedError, StateFormatError

VERSION: Final = 1
_FRAME: Final = struct.Struct("<4sHHII")  # magic, version, flags, size, CRC
_RECORD: Final = struct.Struct("<IHI")  # size, check of the size, CRC


def frame(magic: bytes, body: bytes) -> bytes:
    return _FRAME.pack(magic, VERSION, 0, len(body), zlib.crc32(body)) + body


def unframe(magic: bytes, data: bytes, what: str) -> bytes:
    if len(data) < _FRAME.size:
        raise StateDamagedError(f"{what} is cut short: {len(data)} bytes")
    found, version, flags, size, expected = _FRAME.unpack_from(data)
    if found != magic:
        raise StateFormatError(f"{what} does not begin with {magic!r}, but with {found!r}")
    if version != VERSION or flags:
        raise StateFormatError(
            f"{what} has version {version} and flags {flags}; this release reads {VERSION} and none"
        )
    body = data[_FRAME.size :]
    if len(body) != size or zlib.crc32(body) != expected:
        raise StateDamagedError(f"{what} is corrupted")
    return body


def record(body: bytes) -> bytes:
    size = len(body)
    return _RECORD.pack(size, _check(size), zlib.crc32(body)) + body


def records(data: bytes, start: int, what: str) -> Iterator[tuple[int, bytes]]:
    """Iterate over (end offset, body) of the complete records from `start` on.

    A crash may leave a partial record at the end, a last record with a wrong checksum, or zeros,
    which a file system shows for bytes that were not written. Those are ignored. A corrupted record
    before other data is an error.
    """
    at = start
    while len(data) - at >= _RECORD.size:
        size, check, expected = _RECORD.unpack_from(data, at)
        end = at + _RECORD.size + size
        if not size or check != _check(size):
            if any(data[at:]):
                raise StateDamagedError(f"{what} is corrupted, from byte {at} on")
            return
        if end > len(data):
            return
        body = data[at + _RECORD.size : end]
        if zlib.crc32(body) != expected:
            if any(data[end:]):
                raise StateDamagedError(f"{what} is corrupted, from byte {at} on")
            return
        yield end, body
        at = end


@lru_cache(maxsize=256)
def _check(size: int) -> int:
    return zlib.crc32(size.to_bytes(4, "little")) & 0xFFFF
