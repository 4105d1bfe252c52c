"""Segments of a snapshot: their encoding, how rows are cut into them, and reading from the front.

A segment has rows: the edge of a due bucket, and the numbers of the keys that are due then. Edges
ascend, also from one segment to the next. The smaller of two forms is used: *bitmaps*, one Roaring
bitmap per row, for long rows; or compressed *columns*, for many rows of a key or two.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Callable, Iterator
from typing import Final

from pyroaring import BitMap64

from ...errors import StateDamagedError
from ..little_endian import from_bytes, to_bytes
from .key_numbers import Numbers

Row = tuple[int, Numbers]
"""Edge, and the ascending numbers that are due then."""

_BITMAPS: Final = 1
_COLUMNS: Final = 2
_HEAD: Final = struct.Struct("<BxHIIQ")  # form, unused, rows, ids, first edge
_BITMAP_MIN_IDS_PER_ROW: Final = 4  # bitmaps are tried from here on
_COLUMN_BYTES_PER_ID: Final = 3  # approximate


class SegmentWriter:
    """Cuts rows, in order of their edge, into segments.

    Args:
        most: Maximum keys in a segment; -1: any number.
        step_ms: Maximum time span of a segment.
        done: Called with first and last edge, number of keys, and bytes of each segment.
    """

    def __init__(
        self, most: int, step_ms: int, done: Callable[[int, int, int, bytes], None]
    ) -> None:
        self._max_ids = most
        self._step_ms = step_ms
        self._on_segment = done
        self.rows: list[Row] = []  # of the current segment
        self._count = 0

    def remaining(self) -> int:
        return self._max_ids - self._count if self._max_ids > 0 else 1 << 16

    def add(self, edge: int, numbers: Numbers) -> None:
        """Add numbers that are due at `edge`, which must not be before the last one.

        They must be in key order, and after those of earlier calls with the same edge.
        """
        if self.rows and edge >= self.rows[0][0] + self._step_ms:
            self.cut()
        start = 0
        while start < len(numbers):
            some = numbers[start : start + self.remaining()]
            start += len(some)
            self._count += len(some)
            if self.rows and self.rows[-1][0] == edge:
                some += self.rows.pop()[1]
            self.rows.append((edge, array("Q", sorted(some))))
            if not self.remaining():
                self.cut()

    def cut(self) -> None:
        if self.rows:
            rows, count = self.rows, self._count
            self.rows, self._count = [], 0
            self._on_segment(rows[0][0], rows[-1][0], count, encoded(rows))


def encoded(rows: list[Row]) -> bytes:
    count = sum(len(numbers) for _, numbers in rows)
    first = rows[0][0]
    edges = array("Q", [edge - first for edge, _ in rows])
    if count >= _BITMAP_MIN_IDS_PER_ROW * len(rows):
        bitmaps = [_bitmap(numbers) for _, numbers in rows]
        if sum(map(len, bitmaps)) + 12 * len(rows) <= _COLUMN_BYTES_PER_ID * count + 64:
            sizes = array("I", map(len, bitmaps))
            head = _HEAD.pack(_BITMAPS, 0, len(rows), count, first)
            return b"".join((head, to_bytes(edges), to_bytes(sizes), *bitmaps))
    columns = b"".join(
        (
            to_bytes(edges),
            to_bytes(array("I", [len(numbers) for _, numbers in rows])),
            *(to_bytes(numbers) for _, numbers in rows),
        )
    )
    return _HEAD.pack(_COLUMNS, 0, len(rows), count, first) + zlib.compress(columns, 1)


def _bitmap(numbers: Numbers) -> bytes:
    ids = BitMap64(numbers)
    ids.run_optimize()
    return ids.serialize()


class Segment:
    """A segment that was read. Rows are taken from the front."""

    def __init__(self, data: bytes) -> None:
        try:
            form, _, rows, count, first = _HEAD.unpack_from(data)
            self._data = data if form == _BITMAPS else zlib.decompress(data[_HEAD.size :])
            start = _HEAD.size if form == _BITMAPS else 0
            self._edges = from_bytes("Q", self._data[start : start + 8 * rows])
            self._sizes = from_bytes("I", self._data[start + 8 * rows : start + 12 * rows])
            whole = len(self._data) - start - 12 * rows
            unit = 8 if form == _COLUMNS else 1
            if not rows or whole != unit * sum(self._sizes) or form not in (_BITMAPS, _COLUMNS):
                raise ValueError(f"{rows} rows in {len(data)} bytes of form {form}")
        except (struct.error, zlib.error, ValueError) as error:
            raise StateDamagedError(f"not a segment of due ids: {error}") from error
        self.count: int = count
        self._first: int = first
        self._form = form
        self._row = 0
        self._at = start + 12 * rows  # offset of the front row
        self.left: int = count  # keys in the remaining rows
        self._rest: Numbers | None = None  # rest of the front row, once it was read
        self.in_key_order: bool = False  # True if `_rest` is in key order and not ascending

    @property
    def edge(self) -> int:
        return self._first + self._edges[self._row] if self._row < len(self._edges) else -1

    def front(self) -> Numbers:
        if self._rest is None:
            self._rest = self._numbers(self._row, self._at)
        return self._rest

    def keep(self, rest: Numbers) -> None:
        self._rest = rest

    def drop(self) -> None:
        size = self._sizes[self._row]
        self._at += size if self._form == _BITMAPS else 8 * size
        if self._form == _COLUMNS:
            self.left -= size
        else:
            self.left -= self.count // len(self._sizes)  # approximate: sizes are in bytes
        self._row += 1
        self._rest = None
        self.in_key_order = False

    def _numbers(self, row: int, at: int) -> Numbers:
        size = self._sizes[row]
        if self._form == _COLUMNS:
            return from_bytes("Q", self._data[at : at + 8 * size])
        return BitMap64.deserialize(self._data[at : at + size]).to_array()

    def rows(self) -> Iterator[Row]:
        """Iterate over all rows, including taken ones."""
        at = len(self._data) - (sum(self._sizes) * (8 if self._form == _COLUMNS else 1))
        for row, size in enumerate(self._sizes):
            yield self._first + self._edges[row], self._numbers(row, at)
            at += 8 * size if self._form == _COLUMNS else size

    def rest(self) -> Iterator[int]:
        if self._rest is not None:
            yield from self._rest
        for row, (_, numbers) in enumerate(self.rows()):
            if row > self._row or (row == self._row and self._rest is None):
                yield from numbers

    def ids(self) -> BitMap64:
        found = BitMap64()
        for _, numbers in self.rows():
            found.update(numbers)
        return found
