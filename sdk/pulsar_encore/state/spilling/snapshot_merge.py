from __future__ import annotations

from array import array
from collections.abc import Callable, Generator, Iterator, Sequence
from heapq import merge
from itertools import chain, groupby, islice, starmap
from operator import itemgetter
from typing import Final

from pyroaring import BitMap64

from .key_numbers import BLOCK_BITS, Block, Numbers, in_key_order, key_of
from .segments import Row, Segment, SegmentWriter
from .snapshot_meta import SnapshotMeta

MAX_MERGED: Final = 4  # as Pulsar
_EDGE: Final = itemgetter(0)
_NUMBERS_PER_ROW: Final = 1024  # numbers
_ROWS_PER_STEP: Final = 64  # between two steps, which let other threads run


def choose(sizes: Sequence[int]) -> slice:
    """Return which two to four neighbours to merge: those with the fewest copied keys per snapshot.

    Neighbours have about the same age, and so end at about the same time. Pulsar merges the four
    with the fewest keys, and so copies a long snapshot again for every short one after it.
    """

    def copied(window: tuple[int, int]) -> float:
        start, width = window
        return sum(sizes[start : start + width]) / (width - 1)

    start, width = min(
        (
            (start, width)
            for width in range(min(MAX_MERGED, len(sizes)), 1, -1)
            for start in range(len(sizes) - width + 1)
        ),
        key=copied,
    )
    return slice(start, start + width)


class SnapshotMerge:
    """Several snapshots merged into one, which has every wanted number exactly once.

    Args:
        sources: For each snapshot: its meta, its stale numbers, and a function that reads a
            segment.
    """

    def __init__(
        self,
        sources: Sequence[tuple[SnapshotMeta, BitMap64, Callable[[int], Segment]]],
        wanted: Callable[[BitMap64], BitMap64],
        cut: tuple[int, int],
        done: Callable[[bytes], None],
    ) -> None:
        self._sources = sources
        self._wanted = wanted
        self._done = done
        self._cutter = SegmentWriter(*cut, self._segment)
        self.meta: SnapshotMeta = SnapshotMeta()
        self._slots: dict[int, Block] = {}
        for meta, _, _ in sources:
            self._slots.update(meta.slots)

    def _segment(self, first: int, last: int, count: int, data: bytes) -> None:
        self.meta.add_segment(first, last, count)
        self._done(data)

    def steps(self) -> Generator[None, None, None]:
        ids, slots = self.meta.ids, self.meta.slots
        since = 0
        for edge, numbers in self._in_order():
            self._cutter.add(edge, numbers)
            ids.update(numbers)
            for slot in {number >> BLOCK_BITS for number in numbers}:
                if slot not in slots:
                    slots[slot] = self._slots[slot]
            since += 1
            if since >= _ROWS_PER_STEP:
                since = 0
                yield
        self._cutter.cut()

    def _in_order(self) -> Iterator[Row]:
        streams = [self._rows(*source) for source in self._sources]
        for edge, rows in groupby(
            merge(*starmap(_numbered, enumerate(streams)), key=_EDGE), key=_EDGE
        ):
            yield from ((edge, each) for each in self._merge_rows(rows))

    def _merge_rows(self, rows: Iterator[tuple[int, int, Numbers]]) -> Iterator[Numbers]:
        """Merge the rows of one due time.

        `merge` is stable, so the rows of one source follow each other, and their keys ascend.
        """
        by_source: dict[int, list[Numbers]] = {}
        for _, source, numbers in rows:
            by_source.setdefault(source, []).append(in_key_order(numbers, self._slots))
        parts = list(by_source.values())
        if len(parts) == 1:
            yield from parts[0]
            return
        # Keys of the sources interleave, so all numbers of a due time are in memory: 8 bytes each.
        streams = [
            ((key_of(number, self._slots), number) for number in chain.from_iterable(part))
            for part in parts
        ]
        mixed = merge(*streams)
        while some := array("Q", [number for _, number in islice(mixed, _NUMBERS_PER_ROW)]):
            yield some

    def _rows(
        self, meta: SnapshotMeta, superseded: BitMap64, read: Callable[[int], Segment]
    ) -> Iterator[Row]:
        for number in range(len(meta.counts)):
            segment = read(number)
            ids = segment.ids()
            keep = self._wanted(ids - superseded if superseded else ids)
            if len(keep) == segment.count:
                yield from segment.rows()
            elif keep:
                for edge, numbers in segment.rows():
                    some = array("Q", [each for each in numbers if each in keep])
                    if some:
                        yield edge, some


def _numbered(source: int, rows: Iterator[Row]) -> Iterator[tuple[int, int, Numbers]]:
    for edge, numbers in rows:
        yield edge, source, numbers
