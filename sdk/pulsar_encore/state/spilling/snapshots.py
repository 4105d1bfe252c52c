"""The snapshots, in order of what is due next in them.

Owns which segment is resident, and what becomes of one that cannot be read. A heap has one lower
bound for each snapshot, looked at again when it comes to the front: so the earliest due time is
exact and only segments that are near it are read. Invariant: what is handed over is live.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator
from heapq import heappop, heappush, heapreplace
from typing import Final

from pyroaring import BitMap64

from ...core.due_time import MessageKey
from ...errors import StateDamagedError, StoreError
from ..blobs.blob_store import BlobStore
from . import snapshot_meta as snapshot
from .key_numbers import Numbers
from .membership import Membership
from .segments import Segment
from .snapshot_cursor import SnapshotCursor
from .spilling_metrics import SpillingMetrics
from .stepwise_work import Steps, ThreadTasks

logger: logging.Logger = logging.getLogger(__name__)

_FIRST_PAUSE_MS: Final = 1000
_MOST_PAUSE_MS: Final = 60_000


class Snapshots:
    """Snapshots of one index.

    Args:
        store: Where they are.
        membership: What of them is tracked.
        metrics: Counts loads.
        rescue: Told of ids whose segment cannot be read: the last due time of it, the numbers.
    """

    def __init__(
        self,
        store: BlobStore,
        membership: Membership,
        metrics: SpillingMetrics,
        rescue: Callable[[int, Numbers], None],
    ) -> None:
        self._store = store
        self._membership = membership
        self._metrics = metrics
        self._rescue_ids = rescue
        self._blobs: dict[int, SnapshotCursor] = {}
        self._fronts: list[tuple[int, int]] = []  # (lower bound, generation)
        self._queued: set[int] = set()  # generations in there
        self._reads = 0  # segments that a call waited for
        self.ended: set[int] = set()  # generations of which everything was handed over

    def __len__(self) -> int:
        return len(self._blobs)

    def __iter__(self) -> Iterator[SnapshotCursor]:
        return iter(self._blobs.values())

    def add(self, blob: SnapshotCursor) -> None:
        """One more; of one that is being filled, before there is anything in it."""
        self._blobs[blob.generation] = blob
        self.grown(blob)

    def grown(self, blob: SnapshotCursor) -> None:
        """One that is being filled has something in front that it had not."""
        if blob.edge >= 0 and blob.generation not in self._queued:
            heappush(self._fronts, (blob.edge, blob.generation))
            self._queued.add(blob.generation)

    def remove(self, blobs: Iterable[SnapshotCursor]) -> None:
        """These count no longer."""
        for blob in blobs:
            self._blobs.pop(blob.generation, None)
            self.ended.discard(blob.generation)

    def stored(self, blob: SnapshotCursor) -> None:
        """One that was being filled is in the store."""
        if blob.edge < 0:
            self.ended.add(blob.generation)

    def spent(self) -> int:
        """How many of those that ended may be over: of the others an id is known that is wanted."""
        return sum(not self._holds(self._blobs[generation]) for generation in self.ended)

    def _holds(self, blob: SnapshotCursor) -> bool:
        number = blob.wanted
        if number < 0 or not self._membership.wants(number):
            return False
        return number not in blob.dead or number in blob.fresh

    def clear(self) -> None:
        """None at all."""
        self._blobs.clear()
        self._fronts.clear()
        self._queued.clear()
        self.ended.clear()

    def bury(self, numbers: BitMap64, newest: SnapshotCursor) -> None:
        """The newest one has ids of which older ones have a copy that was left."""
        for blob in self._blobs.values():
            if blob is not newest:
                blob.bury(numbers)

    # What is due

    def next_due(self, now_ms: int | None = None) -> int | None:
        """The earliest time at which something live is due; None when nothing is.

        Args:
            now_ms: What is due by then is made ready to be taken.
        """
        fronts = self._fronts
        while fronts:
            bound, generation = fronts[0]
            blob = self._blobs.get(generation)
            if blob is None or (edge := blob.edge) < 0:
                heappop(fronts)
                self._queued.discard(generation)
                if blob is not None and blob.pending is None:
                    self.ended.add(generation)
            elif edge != bound:
                heapreplace(fronts, (edge, generation))
            elif blob.resident is not None:
                if self._membership.any_live(blob.front()):
                    return edge
                blob.drop()
            elif blob.next >= len(blob.firsts):  # what is due next is not cut yet
                assert blob.cutter is not None
                live = self._membership.any_live(blob.cutter.rows[0][1])
                if live and (now_ms is None or now_ms < bound):
                    return bound
                blob.cutter.cut()
            elif blob.blocked_until and (now_ms is None or now_ms < blob.blocked_until):
                return bound
            else:
                self._load(blob, now_ms if now_ms is not None else edge)
        return None

    def ready(self, edge: int, now_ms: int, most: int | None = None) -> list[SnapshotCursor] | None:
        """Return the snapshots with something live at the earliest edge, made ready for `take`.

        Args:
            edge: The earliest edge.
            now_ms: The time.
            most: Segments that may be read now.

        Returns:
            None if more segments have to be read. Those that were read stay in memory, so each call
            needs fewer.
        """
        found = []
        before = self._reads
        enough = True
        while self.next_due(now_ms) == edge:
            found.append(heappop(self._fronts))
            if most is not None and self._reads - before >= most:
                enough = False
                break
        for each in found:
            heappush(self._fronts, each)
        return [self._blobs[generation] for _, generation in found] if enough else None

    def in_order(self, blob: SnapshotCursor) -> Iterator[MessageKey]:
        """Iterate over the live keys of the row in front, in order of ledger, entry and index.

        Keys of the same edge that are in the next segment of the snapshot are not among them. They
        are higher.
        """
        key_of, live = self._membership.slots.key_of, self._membership.live
        return (key_of(number) for number in self._row(blob) if number in live)

    def _row(self, blob: SnapshotCursor) -> Numbers:
        """The row in front in order of keys; some of it may not be live."""
        segment = blob.resident
        assert segment is not None
        if not segment.in_key_order:
            live = self._membership.those_live(segment.front())
            segment.keep(self._membership.slots.in_key_order(live))
            segment.in_key_order = True
        return segment.front()

    def take(self, blob: SnapshotCursor, limit: int) -> Numbers:
        """Take the lowest live keys of the row in front of a snapshot that is ready.

        Args:
            blob: The snapshot.
            limit: The most keys to take.

        Returns:
            Their numbers, rising.
        """
        row = blob.front()
        if limit >= len(row):
            numbers = array("Q", sorted(self._membership.those_live(row)))
            blob.drop()
        else:
            row, live = self._row(blob), self._membership.live
            numbers, at = array("Q"), 0
            while len(numbers) < limit and at < len(row):
                if row[at] in live:
                    numbers.append(row[at])
                at += 1
            if at < len(row):
                assert blob.resident is not None
                blob.resident.keep(row[at:])
            else:
                blob.drop()
            numbers = array("Q", sorted(numbers))
        blob.handed += len(numbers)
        self._membership.take(numbers)
        return numbers

    # Segments

    def _load(self, blob: SnapshotCursor, now_ms: int) -> None:
        if blob.fetched is not None:
            blob.arrived(blob.fetched)
            return
        self._reads += 1
        try:
            blob.arrived(self._read(blob, blob.next))
        except StateDamagedError as error:
            self._rescue(blob, error, now_ms)
        except StoreError as error:
            self._block(blob, error, now_ms)

    def _block(self, blob: SnapshotCursor, error: StoreError, now_ms: int) -> None:
        blob.pause_ms = min(2 * blob.pause_ms or _FIRST_PAUSE_MS, _MOST_PAUSE_MS)
        blob.blocked_until = now_ms + blob.pause_ms
        logger.warning(
            "segment %d of snapshot %d could not be read, its ids wait for another try: %s",
            blob.next,
            blob.generation,
            error,
        )

    def _read(self, blob: SnapshotCursor, number: int) -> Segment:
        if blob.pending is not None:
            return Segment(blob.pending[number])
        with self._metrics.counted("load"):
            return Segment(self._store.segment(blob.generation, number))

    def _rescue(self, blob: SnapshotCursor, error: StateDamagedError, now_ms: int) -> None:
        """A segment is not what was written: its ids are those of the snapshot that are in no other
        segment of it; they come due at the last time that one of them may have been due."""
        try:
            meta = snapshot.decoded(
                self._store.meta(blob.generation), f"snapshot {blob.generation}"
            )
            ids, latest = meta.ids, 0
            for number in range(len(blob.firsts)):
                try:
                    ids -= self._read(blob, number).ids()
                except StateDamagedError:
                    latest = max(latest, meta.lasts[number])
        except StoreError as other:
            self._block(blob, other, now_ms)
            return
        ids -= blob.dead
        ids &= self._membership.live
        logger.error(
            "segment %d of snapshot %d is damaged: its %d ids are known and come due together, at "
            "%d ms: %s",
            blob.next,
            blob.generation,
            len(ids),
            latest,
            error,
        )
        self._metrics.segments_rescued += 1
        blob.next += 1
        self._rescue_ids(latest, ids.to_array())

    def to_fetch(self) -> SnapshotCursor | None:
        """Return a snapshot whose next segment should be read in advance, or None.

        Looks at the snapshots whose keys are due first, as far as is known. There are several where
        one due time has more keys than a head.
        """
        fronts = self._fronts
        at, first = [0], fronts[0][0] if fronts else 0
        while at:
            here = at.pop()
            if here < len(fronts) and fronts[here][0] == first:
                blob = self._blobs.get(fronts[here][1])
                if blob is not None and blob.wants_next():
                    return blob
                at += (2 * here + 1, 2 * here + 2)
        return None

    def fetch(self, blob: SnapshotCursor) -> Steps:
        """Read the segment after the resident one."""
        number = blob.next
        try:
            segment = yield ThreadTasks(self._fetched(blob, number))
        except StoreError:  # whoever needs it reads it again, and judges
            blob.not_fetched = number
            return
        if blob.next == number:
            blob.fetched = segment

    def _fetched(self, blob: SnapshotCursor, number: int) -> Generator[None, None, Segment]:
        segment = self._read(blob, number)
        yield
        return segment

    def check(self) -> None:
        """Walk the invariants; for tests."""
        bounds = {generation: bound for bound, generation in self._fronts}
        assert len(bounds) == len(self._fronts) and bounds.keys() == self._queued
        found = BitMap64()
        for blob in self:
            if blob.edge >= 0:
                assert bounds[blob.generation] <= blob.edge, blob.generation
            for number in self._rest(blob):
                if number in self._membership.live and number not in blob.dead:
                    assert number not in found, "an id has two copies that count"
                    found.add(number)
        assert found == self._membership.live, "an id has no copy"

    def _rest(self, blob: SnapshotCursor) -> Iterator[int]:
        if blob.resident is not None:
            yield from blob.resident.rest()
        for number in range(blob.next, len(blob.firsts)):
            yield from self._read(blob, number).ids()
        if blob.cutter is not None:
            for _, numbers in blob.cutter.rows:
                yield from numbers
