"""Segments: a stretch of due buckets as bytes, and what is still to be handed over of one.

Owns the encoding, the cutting and `Segment`. A segment is rows of (edge of a due bucket, numbers
of the keys due then). Two forms, whichever is smaller: *bitmaps*, one Roaring bitmap a row, where
rows are long; and *columns*, compressed, where many rows have a key or two. Invariants: rows of a
segment rise, and those of one segment are not before those of the segment before it.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Callable, Iterator
from typing import Final

from pyroaring import BitMap64

from ...errors import StateDamagedError
from .key_numbers import Numbers
from .record_frames import from_bytes, to_bytes

Row = tuple[int, Numbers]
"""Edge, and the numbers that are due then, rising."""

_BITMAPS: Final = 1
_COLUMNS: Final = 2
_HEAD: Final = struct.Struct("<BxHIIQ")  # form, none, rows, ids, first edge
_BITMAP_MIN_IDS_PER_ROW: Final = 4  # ids a row from which bitmaps are tried
_COLUMN_BYTES_PER_ID: Final = 3  # about how many bytes an id takes in columns


class SegmentWriter:
    """Rows, in order of their edge, cut into segments.

    Args:
        most: Ids in a segment; -1: any number.
        step_ms: A segment goes on until its first edge and so much.
        done: Gets each segment: first and last edge, ids, bytes.
    """

    def __init__(
        self, most: int, step_ms: int, done: Callable[[int, int, int, bytes], None]
    ) -> None:
        self._max_ids = most
        self._step_ms = step_ms
        self._on_segment = done
        self.rows: list[Row] = []  # of the segment that has not ended
        self._count = 0

    def remaining(self) -> int:
        """How many ids one row should have at most."""
        return self._max_ids - self._count if self._max_ids > 0 else 1 << 16

    def add(self, edge: int, numbers: Numbers) -> None:
        """Add numbers that are due at `edge`, which is not before the last one.

        A call with the edge of the one before adds to its row.

        Args:
            edge: When they are due, ms.
            numbers: In order of their keys, and after those of the same edge that were added
                before: if they do not fit into the segment, the lowest keys are in it.
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
        """End the segment."""
        if self.rows:
            rows, count = self.rows, self._count
            self.rows, self._count = [], 0
            self._on_segment(rows[0][0], rows[-1][0], count, encoded(rows))


def encoded(rows: list[Row]) -> bytes:
    """The bytes of a segment of at least one row."""
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
    """A segment that was read, of which rows are taken from the front.

    Raises:
        StateDamagedError: The bytes are not a segment's.
    """

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
        self._at = start + 12 * rows  # where the row begins
        self.left: int = count  # ids of rows that were not passed
        self._rest: Numbers | None = None  # of the row, when some of it was taken
        self.in_key_order: bool = False  # whether `_rest` is in order of keys instead of rising

    @property
    def edge(self) -> int:
        """The edge of the row in front; -1 when there is none."""
        return self._first + self._edges[self._row] if self._row < len(self._edges) else -1

    def front(self) -> Numbers:
        """The numbers of the row in front that were not taken."""
        if self._rest is None:
            self._rest = self._numbers(self._row, self._at)
        return self._rest

    def keep(self, rest: Numbers) -> None:
        """What is left of the row in front."""
        self._rest = rest

    def drop(self) -> None:
        """Go on to the next row."""
        size = self._sizes[self._row]
        self._at += size if self._form == _BITMAPS else 8 * size
        if self._form == _COLUMNS:
            self.left -= size
        else:
            self.left -= self.count // len(self._sizes)  # about: rows say bytes
        self._row += 1
        self._rest = None
        self.in_key_order = False

    def _numbers(self, row: int, at: int) -> Numbers:
        size = self._sizes[row]
        if self._form == _COLUMNS:
            return from_bytes("Q", self._data[at : at + 8 * size])
        return BitMap64.deserialize(self._data[at : at + size]).to_array()

    def rows(self) -> Iterator[Row]:
        """All rows, whatever was taken."""
        at = len(self._data) - (sum(self._sizes) * (8 if self._form == _COLUMNS else 1))
        for row, size in enumerate(self._sizes):
            yield self._first + self._edges[row], self._numbers(row, at)
            at += 8 * size if self._form == _COLUMNS else size

    def rest(self) -> Iterator[int]:
        """The numbers that were not taken."""
        if self._rest is not None:
            yield from self._rest
        for row, (_, numbers) in enumerate(self.rows()):
            if row > self._row or (row == self._row and self._rest is None):
                yield from numbers

    def ids(self) -> BitMap64:
        """The numbers of all rows."""
        found = BitMap64()
        for _, numbers in self.rows():
            found.update(numbers)
        return found
