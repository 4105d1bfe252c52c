"""A number for each position of a block, kept by runs: 4 bytes for a lone position, 8 for a run.

An element is a position, a bit that says whether a run begins there, and the number. A run is two
elements, its first and its last position. Positions rise, and each is in at most one run. A
position in a run may be unused: a run tells where to look, not whether a key is there. Elements
grow to 8 bytes if a number needs it. Long arrays end in spare elements, greater than any other:
growing by a sixteenth, as arrays do, leaves holes of every size behind (measured: 2 bytes a key).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TypeAlias

POSITION_BITS = 13  # a position is less than 2**13
_NARROW = 18  # bits of a 32-bit element that are left for a number
_WIDE = 50
_LONG = 64

Runs: TypeAlias = "array[int]"


def new_runs() -> Runs:
    return array("I")


def find(runs: Runs, position: int) -> int:
    """Return the number of a position; -1 if it is in no run."""
    width = _width(runs)
    at = _after(runs, position, width)
    if not at:
        return -1
    element = runs[at - 1]
    if element >> width & 1 or element >> width >> 1 == position:
        return element & ((1 << width) - 1)
    return -1


def put(runs: Runs, position: int, number: int) -> Runs:
    """Set the number of a position, cutting the run it was in; return the array to keep."""
    width = _width(runs)
    if number + 1 >> width:
        runs, width = _widened(runs, width), _WIDE
    at = _after(runs, position, width)
    if at:
        before = runs[at - 1]
        if before & ((1 << width) - 1) == number:
            if not before >> width & 1:
                _extend(runs, at, position, width)
            return runs
        if before >> width & 1 or before >> width >> 1 == position:
            first, last, old, start = _run_at(runs, at - 1)
            runs[start : start + (1 if first == last else 2)] = (
                _elements(runs, first, position - 1, old)
                + _elements(runs, position, position, number)
                + _elements(runs, position + 1, last, old)
            )
            return runs
    _insert(runs, at, position << 1 << width | number, width)
    return runs


def append(runs: Runs, first: int, last: int, number: int) -> Runs:
    """Set the number of positions beyond all others; return the array to keep."""
    width = _width(runs)
    if number + 1 >> width:
        runs, width = _widened(runs, width), _WIDE
    at = _after(runs, first, width)
    if at and runs[at - 1] & ((1 << width) - 1) == number:
        _extend(runs, at, last, width)
    else:
        runs[at:at] = _elements(runs, first, last, number)
    return runs


def _extend(runs: Runs, at: int, last: int, width: int) -> None:
    """Extend the run before `at` to `last`, over positions in no run."""
    before = runs[at - 1]
    if before >> width >> 1 == last:
        return
    end = last << 1 << width | before & ((1 << width) - 1)
    if at > 1 and runs[at - 2] >> width & 1:
        runs[at - 1] = end
    else:
        runs[at - 1] = before | 1 << width
        _insert(runs, at, end, width)


def _insert(runs: Runs, at: int, element: int, width: int) -> None:
    if len(runs) >= _LONG:
        if runs[-1] != _spare(width):
            runs.extend([_spare(width)] * (len(runs) >> 2))
        runs.pop()
    runs.insert(at, element)


def forget(runs: Runs, position: int) -> None:
    """Forget a position; only a lone one, which needs no more room."""
    width = _width(runs)
    at = bisect_left(runs, position << 1 << width)
    alone = not at or not runs[at - 1] >> width & 1
    if alone and at < len(runs) and runs[at] >> width == position << 1:
        del runs[at]


def cut(runs: Runs, start: int, stop: int) -> set[int]:
    """Drop the positions from `start` up to `stop`; return the numbers they had."""
    width = _width(runs)
    low = _after(runs, start - 1, width)
    high = _after(runs, stop - 1, width)
    left = right = runs[:0]
    if low and runs[low - 1] >> width & 1:  # the first run begins before `start`
        first, _, number, low = _run_at(runs, low - 1)
        left = _elements(runs, first, start - 1, number)
    if high and runs[high - 1] >> width & 1:  # the last run goes beyond `stop`
        _, last, number, _ = _run_at(runs, high - 1)
        right = _elements(runs, stop, last, number)
        high += 1
    mask = (1 << width) - 1
    numbers = {element & mask for element in runs[low:high]}
    runs[low:high] = left + right
    return numbers


def _width(runs: Runs) -> int:
    return _NARROW if runs.itemsize == 4 else _WIDE


def _after(runs: Runs, position: int, width: int) -> int:
    """Return how many elements are at the position or before it."""
    return bisect_left(runs, ((position + 1) << 1 << width) - 1)


def _spare(width: int) -> int:
    return (1 << (1 + POSITION_BITS + width)) - 1  # no number is all ones


def _widened(runs: Runs, width: int) -> Runs:
    if width == _WIDE:
        return runs
    mask, spare = (1 << width) - 1, _spare(width)
    return array("Q", [each >> width << _WIDE | each & mask for each in runs if each != spare])


def _run_at(runs: Runs, at: int) -> tuple[int, int, int, int]:
    """Return first and last position, number and first element of the run of an element."""
    width = _width(runs)
    opens = runs[at] >> width & 1
    if not opens and at and runs[at - 1] >> width & 1:
        at, opens = at - 1, 1
    first = runs[at] >> width >> 1
    last = runs[at + 1] >> width >> 1 if opens else first
    return first, last, runs[at] & ((1 << width) - 1), at


def _elements(runs: Runs, first: int, last: int, number: int) -> Runs:
    width = _width(runs)
    if first > last:
        return runs[:0]
    if first == last:
        return array(runs.typecode, (first << 1 << width | number,))
    return array(runs.typecode, ((first << 1 | 1) << width | number, last << 1 << width | number))
