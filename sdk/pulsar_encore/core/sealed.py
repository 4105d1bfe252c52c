"""The bytes of a bucket that has stopped growing.

Two forms, whichever is smaller: the portable Roaring format, in which a run of ids costs four
bytes whatever its length; and gaps, one byte for each id, which beats Roaring's two bytes where
ids are scattered but near each other (measured: one id in ten at random, 1.0 against 2.0 bytes).
Invariant: `unseal(seal(ids)) == ids`. Not a storage format: it never leaves the process.
"""

from __future__ import annotations

from itertools import accumulate, compress
from operator import sub

from pyroaring import BitMap64

_ROARING = b"\x00"
_GAPS = b"\x01"
_HEADER = 9  # form, first id
_SKIP = 255  # a gap byte that moves on by 255 without naming an id
_NAMES_ID = bytes([1]) * _SKIP + bytes([0])
_STEPS = tuple(bytes([gap]) for gap in range(_SKIP))


def seal(ids: BitMap64) -> bytes:
    """Encode a bucket; no ids give no bytes. May run-optimise `ids` in place."""
    size = len(ids)
    if not size:
        return b""
    ids.run_optimize()
    roaring = ids.serialize()
    first = ids.min()
    # Upper bound of the gap form, known without walking the ids.
    if _HEADER + size + (ids.max() - first) // _SKIP < len(roaring):
        return _GAPS + first.to_bytes(8, "little") + _gaps(ids)
    return _ROARING + roaring


def unseal(data: bytes) -> BitMap64:
    """Decode what `seal` returned."""
    if not data:
        return BitMap64()
    if data[:1] == _ROARING:
        return BitMap64.deserialize(data[1:])
    first = int.from_bytes(data[1:_HEADER], "little")
    gaps = data[_HEADER:]
    return BitMap64(compress(accumulate(gaps, initial=first), b"\x01" + gaps.translate(_NAMES_ID)))


def _gaps(ids: BitMap64) -> bytes:
    values = ids.to_array()
    steps = list(map(sub, values[1:], values))
    if max(steps, default=0) < _SKIP:
        return bytes(steps)
    return b"".join([b"\xff" * (step // _SKIP) + _STEPS[step % _SKIP] for step in steps])
