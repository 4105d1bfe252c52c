"""One snapshot as the index sees it: what is still to come of it, and the segment that is resident.

Invariant: rows before the one in front were handed over or were stale; a row in front has no id
that a newer snapshot has as well.
"""

from __future__ import annotations

from array import array
from typing import Final

from pyroaring import BitMap64

from .key_numbers import Numbers
from .segments import Segment, SegmentWriter

_PREFETCH_BELOW: Final = 0.2


class SnapshotCursor:
    """A snapshot.

    Args:
        generation: Its name; a growing number.
        firsts: By segment: the first edge.
        total: How many ids were written.

    Attributes:
        superseded: Numbers of which a newer snapshot has the copy that counts.
        superseded_uncommitted: Those of `superseded` of which the newer snapshot is not
            committed yet.
        pending: The segments of one that is not in the store yet.
        cutter: Of one that is being filled: what is not cut yet.
        damaged: A segment of it is not what was written, and not due yet.
        wanted: An id that it had to keep when somebody looked last; -1: nobody did.
        next: The segment after the resident one.
        resident: The segment that rows are taken from.
        fetched: The segment after it, when it was read before it is needed.
        not_fetched: The number of the segment that could not be read in advance; -1 for none.
        blocked_until: The segment after it could not be read: not before that time, ms.
        pause_ms: How long that was last time.
        handed: How many ids were handed over.
        size: Bytes in the store.
    """

    __slots__ = (
        "blocked_until",
        "cutter",
        "damaged",
        "fetched",
        "firsts",
        "generation",
        "handed",
        "next",
        "not_fetched",
        "pause_ms",
        "pending",
        "resident",
        "size",
        "superseded",
        "superseded_uncommitted",
        "total",
        "wanted",
    )

    def __init__(self, generation: int, firsts: array[int], total: int) -> None:
        self.generation: int = generation
        self.firsts: array[int] = firsts
        self.total: int = total
        self.superseded: BitMap64 = BitMap64()
        self.superseded_uncommitted: BitMap64 = BitMap64()
        self.pending: list[bytes] | None = None
        self.cutter: SegmentWriter | None = None
        self.damaged: bool = False
        self.wanted: int = -1
        self.next: int = 0
        self.resident: Segment | None = None
        self.fetched: Segment | None = None
        self.not_fetched: int = -1
        self.blocked_until: int = 0
        self.pause_ms: int = 0
        self.handed: int = 0
        self.size: int = 0

    @property
    def edge(self) -> int:
        """Not after the first due time of what is to come; -1 when nothing is."""
        if self.resident is not None:
            return self.resident.edge
        if self.next < len(self.firsts):
            return max(self.firsts[self.next], self.blocked_until)
        if self.cutter is not None and self.cutter.rows:
            return self.cutter.rows[0][0]
        return -1

    @property
    def loaded(self) -> int:
        """Ids in memory."""
        return (self.resident.left if self.resident is not None else 0) + (
            self.fetched.left if self.fetched is not None else 0
        )

    def set_resident(self, segment: Segment) -> None:
        """The next segment is here."""
        self.resident = segment
        self.next += 1
        self.fetched = None
        self.blocked_until = 0
        self.pause_ms = 0
        self._drop_superseded()

    def front(self) -> Numbers:
        """The row in front."""
        assert self.resident is not None
        return self.resident.front()

    def drop(self) -> None:
        """The row in front is dealt with."""
        assert self.resident is not None
        self.resident.drop()
        if self.resident.edge < 0:
            self.resident = None
        else:
            self._drop_superseded()

    def supersede(self, numbers: BitMap64) -> None:
        """A newer snapshot, which is not committed yet, has these as well."""
        self.superseded_uncommitted |= numbers - self.superseded
        self.superseded |= numbers
        if self.resident is not None:
            self._drop_superseded()

    @property
    def committed_superseded(self) -> BitMap64:
        """What is dead even if the newer snapshot is never committed."""
        return self.superseded - self.superseded_uncommitted

    def _drop_superseded(self) -> None:
        if self.superseded:
            assert self.resident is not None
            superseded = self.superseded
            row = self.resident.front()
            self.resident.keep(array("Q", [number for number in row if number not in superseded]))

    def wants_next(self) -> bool:
        """Whether the segment after the resident one should be read now.

        For the snapshots whose keys are due next. Without a resident segment, that is the segment
        that is needed next.
        """
        return (
            self.fetched is None
            and self.pending is None
            and self.next < len(self.firsts)
            and self.next != self.not_fetched
            and (
                self.resident is None or self.resident.left < _PREFETCH_BELOW * self.resident.count
            )
        )
