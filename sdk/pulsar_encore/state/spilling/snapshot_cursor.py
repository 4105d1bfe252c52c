from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Final

from pyroaring import BitMap64

from .key_numbers import Numbers
from .segments import Segment, SegmentWriter

_PREFETCH_BELOW: Final = 0.2


@dataclass(eq=False, slots=True)
class SnapshotCursor:
    """The reading position in a snapshot, and its resident segment, which rows are taken from.

    Rows before the front row were handed over or stale. No key of the front row has a copy in a
    newer snapshot.

    Attributes:
        generation: Newer snapshots have higher numbers.
        firsts: The first edge of each segment.
        total: Number of keys that were written.
        superseded: Numbers with a valid copy in a newer snapshot.
        superseded_uncommitted: Those of `superseded` whose newer snapshot is not committed yet.
        pending: The segments, until the snapshot is in the store.
        cutter: The rows that are not cut into segments, while the snapshot is being filled.
        damaged: True if a segment that is not due yet is corrupted.
        wanted: A number that the snapshot had to keep at the last trim; -1 if unknown.
        next: Number of the segment after the resident one.
        fetched: The next segment, if it was read in advance.
        not_fetched: Number of a segment that could not be read in advance, or -1.
        blocked_until: Until this time in ms, the next segment is not read, after a failure.
    """

    generation: int
    firsts: array[int]
    total: int
    superseded: BitMap64 = field(default_factory=BitMap64)
    superseded_uncommitted: BitMap64 = field(default_factory=BitMap64)
    pending: list[bytes] | None = None
    cutter: SegmentWriter | None = None
    damaged: bool = False
    wanted: int = -1
    next: int = 0
    resident: Segment | None = None
    fetched: Segment | None = None
    not_fetched: int = -1
    blocked_until: int = 0
    pause_ms: int = 0
    handed: int = 0
    size: int = 0

    @property
    def edge(self) -> int:
        """A lower bound of the next due time; -1 if no rows are left."""
        if self.resident is not None:
            return self.resident.edge
        if self.next < len(self.firsts):
            return max(self.firsts[self.next], self.blocked_until)
        if self.cutter is not None and self.cutter.rows:
            return self.cutter.rows[0][0]
        return -1

    @property
    def loaded(self) -> int:
        return sum(each.left for each in (self.resident, self.fetched) if each is not None)

    def set_resident(self, segment: Segment) -> None:
        self.resident = segment
        self.next += 1
        self.fetched = None
        self.blocked_until = 0
        self.pause_ms = 0
        self._drop_superseded()

    def front(self) -> Numbers:
        assert self.resident is not None
        return self.resident.front()

    def drop(self) -> None:
        assert self.resident is not None
        self.resident.drop()
        if self.resident.edge < 0:
            self.resident = None
        else:
            self._drop_superseded()

    def supersede(self, numbers: BitMap64) -> None:
        self.superseded_uncommitted |= numbers - self.superseded
        self.superseded |= numbers
        if self.resident is not None:
            self._drop_superseded()

    @property
    def committed_superseded(self) -> BitMap64:
        """The numbers that stay stale even if the newest snapshot is never committed."""
        return self.superseded - self.superseded_uncommitted

    def _drop_superseded(self) -> None:
        if self.superseded:
            assert self.resident is not None
            superseded = self.superseded
            row = self.resident.front()
            self.resident.keep(array("Q", [number for number in row if number not in superseded]))

    def wants_next(self) -> bool:
        return (
            self.fetched is None
            and self.pending is None
            and self.next < len(self.firsts)
            and self.next != self.not_fetched
            and (
                self.resident is None or self.resident.left < _PREFETCH_BELOW * self.resident.count
            )
        )
