"""The bytes of a bucket that has stopped growing, with its slot in front.

The smaller of two forms is used. The portable Roaring format takes four bytes for a run of ids of
any length. Gaps take one byte for each id, against Roaring's two, if ids are scattered but near
each other (measured: one id in ten at random, 1.0 against 2.0 bytes). A bucket that would take long
to open stays a bitmap.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import accumulate, compress
from operator import sub

from pyroaring import BitMap64

MOST_IDS = 1536  # in gaps: a query takes 8 ns per id, opening 50 ns, sealing as much
MOST_BYTES = 512  # of Roaring, which opens at memory speed

_HEAD = 4
_IS_GAPS = 1 << 31
_FIRST = _HEAD + 6  # where gaps begin, after the first id
_SKIP = 255  # a gap byte that moves on by 255 without naming an id
_SKIPS = bytes([_SKIP])
_NAMES_ID = bytes([1]) * _SKIP + bytes([0])
_STEPS = tuple(bytes([gap]) for gap in range(_SKIP))


def seal(ids: BitMap64, tag: int) -> bytes | None:
    """Encode a bucket; return None if it should stay a bitmap. May run-optimise `ids` in place.

    There is at least one id, and all are below 2**48; `tag` is below 2**31.
    """
    size = len(ids)
    ids.run_optimize()
    roaring = ids.serialize()
    first = ids.min()
    # Upper bound of the gap form, known without walking the ids.
    if size <= MOST_IDS and _FIRST + size + (ids.max() - first) // _SKIP < _HEAD + len(roaring):
        values = ids.to_array()
        return _head(tag, first) + _gaps(list(map(sub, values[1:], values)))
    return tag.to_bytes(_HEAD, "little") + roaring if len(roaring) <= MOST_BYTES else None


def unseal(data: bytes) -> BitMap64:
    first, gaps = _parts(data)
    return BitMap64.deserialize(gaps) if first < 0 else BitMap64(_ids_in(first, gaps))


def listed(held: BitMap64 | bytes) -> array[int]:
    """Return the ids in order. No bitmap is made of gaps, which would take twice as long."""
    if not isinstance(held, bytes):
        return held.to_array()
    first, gaps = _parts(held)
    return BitMap64.deserialize(gaps).to_array() if first < 0 else array("Q", _ids_in(first, gaps))


def size_of(held: BitMap64 | bytes) -> int:
    if not isinstance(held, bytes):
        return len(held)
    first, gaps = _parts(held)
    return len(BitMap64.deserialize(gaps)) if first < 0 else 1 + len(gaps) - gaps.count(_SKIP)


def tag_of(data: bytes) -> int:
    return int.from_bytes(data[:_HEAD], "little") & ~_IS_GAPS


def holds(data: bytes, number: int) -> bool:
    first, gaps = _parts(data)
    if first < 0:
        return number in BitMap64.deserialize(gaps)
    if number <= first:
        return number == first
    at, passed = _short_of(gaps, number - first)
    if at == len(gaps) or passed + gaps[at] != number - first:
        return False
    return gaps[at] != _SKIP or gaps[at + 1] == 0


def without(data: bytes, start: int, stop: int) -> tuple[BitMap64 | bytes, int]:
    """Remove the ids from `start` up to `stop`; return the rest, and the number removed.

    The rest is empty bytes if nothing is left, and a bitmap if that is the better form.
    """
    first, gaps = _parts(data)
    if first < 0:
        return _unrun(data, BitMap64.deserialize(gaps), start, stop)
    low, passed = _short_of(gaps, start - first)
    high, reached = _short_of(gaps, stop - first)
    gone = high - low - gaps.count(_SKIP, low, high) + (start <= first < stop)
    if not gone:
        return data, 0
    # The next id that stays: `reached`, then skips, then one gap.
    after = gaps[high:].lstrip(_SKIPS)
    reached += _SKIP * (len(gaps) - high - len(after))
    if start <= first:
        if not after:
            return b"", gone
        return _head(tag_of(data), first + reached + after[0]) + after[1:], gone
    kept = gaps[:low]
    if after:
        kept += _gaps([reached - passed + after[0]]) + after[1:]
    return data[:_FIRST] + kept.rstrip(_SKIPS), gone


def _unrun(data: bytes, ids: BitMap64, start: int, stop: int) -> tuple[BitMap64 | bytes, int]:
    gone = int(ids.range_cardinality(start, stop))
    if not gone:
        return data, 0
    ids.remove_range(start, stop)
    if not ids:
        return b"", gone
    sealed = seal(ids, tag_of(data))
    return (ids if sealed is None else sealed), gone


def _head(tag: int, first: int) -> bytes:
    return (tag | _IS_GAPS).to_bytes(_HEAD, "little") + first.to_bytes(_FIRST - _HEAD, "little")


def _parts(data: bytes) -> tuple[int, bytes]:
    """Return the first id and the gaps after it, or -1 and the bytes in Roaring format."""
    if int.from_bytes(data[:_HEAD], "little") & _IS_GAPS:
        return int.from_bytes(data[_HEAD:_FIRST], "little"), data[_FIRST:]
    return -1, data[_HEAD:]


def _ids_in(first: int, gaps: bytes) -> Iterator[int]:
    return compress(accumulate(gaps, initial=first), b"\x01" + gaps.translate(_NAMES_ID))


def _short_of(gaps: bytes, distance: int) -> tuple[int, int]:
    """Return how many gaps from the start stay short of a distance, and their sum."""
    at = passed = 0
    step = 1 << len(gaps).bit_length()
    while step := step >> 1:
        if at + step <= len(gaps):
            more = sum(gaps[at : at + step])
            if passed + more < distance:
                at += step
                passed += more
    return at, passed


def _gaps(steps: list[int]) -> bytes:
    if max(steps, default=0) < _SKIP:
        return bytes(steps)
    return b"".join([_SKIPS * (step // _SKIP) + _STEPS[step % _SKIP] for step in steps])
