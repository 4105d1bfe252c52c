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

_MIN_RETRY_DELAY_MS: Final = 1000
_MAX_RETRY_DELAY_MS: Final = 60_000


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
        self._on_rescued = rescue
        self._cursors: dict[int, SnapshotCursor] = {}
        self._fronts: list[tuple[int, int]] = []  # (lower bound, generation)
        self._queued_generations: set[int] = set()  # generations in there
        self._reads = 0  # segments that a call waited for
        self.ended: set[int] = set()  # generations of which everything was handed over

    def __len__(self) -> int:
        return len(self._cursors)

    def __iter__(self) -> Iterator[SnapshotCursor]:
        return iter(self._cursors.values())

    def add(self, cursor: SnapshotCursor) -> None:
        """One more; of one that is being filled, before there is anything in it."""
        self._cursors[cursor.generation] = cursor
        self.update_front(cursor)

    def update_front(self, cursor: SnapshotCursor) -> None:
        """One that is being filled has something in front that it had not."""
        if cursor.edge >= 0 and cursor.generation not in self._queued_generations:
            heappush(self._fronts, (cursor.edge, cursor.generation))
            self._queued_generations.add(cursor.generation)

    def remove(self, cursors: Iterable[SnapshotCursor]) -> None:
        """These count no longer."""
        for cursor in cursors:
            self._cursors.pop(cursor.generation, None)
            self.ended.discard(cursor.generation)

    def stored(self, cursor: SnapshotCursor) -> None:
        """One that was being filled is in the store."""
        if cursor.edge < 0:
            self.ended.add(cursor.generation)

    def count_unneeded(self) -> int:
        """How many of those that ended may be over: of the others an id is known that is wanted."""
        return sum(not self._still_needed(self._cursors[generation]) for generation in self.ended)

    def _still_needed(self, cursor: SnapshotCursor) -> bool:
        number = cursor.wanted
        if number < 0 or not self._membership.wants(number):
            return False
        return number not in cursor.superseded or number in cursor.superseded_uncommitted

    def clear(self) -> None:
        """None at all."""
        self._cursors.clear()
        self._fronts.clear()
        self._queued_generations.clear()
        self.ended.clear()

    def supersede(self, numbers: BitMap64, newest: SnapshotCursor) -> None:
        """The newest one has ids of which older ones have a copy that was left."""
        for cursor in self._cursors.values():
            if cursor is not newest:
                cursor.supersede(numbers)

    # What is due

    def next_due(self, now_ms: int | None = None) -> int | None:
        """The earliest time at which something live is due; None when nothing is.

        Args:
            now_ms: What is due by then is made ready to be taken.
        """
        fronts = self._fronts
        while fronts:
            bound, generation = fronts[0]
            cursor = self._cursors.get(generation)
            if cursor is None or (edge := cursor.edge) < 0:
                heappop(fronts)
                self._queued_generations.discard(generation)
                if cursor is not None and cursor.pending is None:
                    self.ended.add(generation)
            elif edge != bound:
                heapreplace(fronts, (edge, generation))
            elif cursor.resident is not None:
                if self._membership.any_live(cursor.front()):
                    return edge
                cursor.drop()
            elif cursor.next >= len(cursor.firsts):  # what is due next is not cut yet
                assert cursor.cutter is not None
                live = self._membership.any_live(cursor.cutter.rows[0][1])
                if live and (now_ms is None or now_ms < bound):
                    return bound
                cursor.cutter.cut()
            elif cursor.blocked_until and (now_ms is None or now_ms < cursor.blocked_until):
                return bound
            else:
                self._load(cursor, now_ms if now_ms is not None else edge)
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
        return [self._cursors[generation] for _, generation in found] if enough else None

    def in_order(self, cursor: SnapshotCursor) -> Iterator[MessageKey]:
        """Iterate over the live keys of the row in front, in order of ledger, entry and index.

        Keys of the same edge that are in the next segment of the snapshot are not among them. They
        are higher.
        """
        key_of, live = self._membership.slots.key_of, self._membership.live
        return (key_of(number) for number in self._row_in_key_order(cursor) if number in live)

    def _row_in_key_order(self, cursor: SnapshotCursor) -> Numbers:
        """The row in front in order of keys; some of it may not be live."""
        segment = cursor.resident
        assert segment is not None
        if not segment.in_key_order:
            live = self._membership.select_live(segment.front())
            segment.keep(self._membership.slots.in_key_order(live))
            segment.in_key_order = True
        return segment.front()

    def take(self, cursor: SnapshotCursor, limit: int) -> Numbers:
        """Take the lowest live keys of the row in front of a snapshot that is ready.

        Args:
            blob: The snapshot.
            limit: The most keys to take.

        Returns:
            Their numbers, rising.
        """
        row = cursor.front()
        if limit >= len(row):
            numbers = array("Q", sorted(self._membership.select_live(row)))
            cursor.drop()
        else:
            row, live = self._row_in_key_order(cursor), self._membership.live
            numbers, at = array("Q"), 0
            while len(numbers) < limit and at < len(row):
                if row[at] in live:
                    numbers.append(row[at])
                at += 1
            if at < len(row):
                assert cursor.resident is not None
                cursor.resident.keep(row[at:])
            else:
                cursor.drop()
            numbers = array("Q", sorted(numbers))
        cursor.handed += len(numbers)
        self._membership.take(numbers)
        return numbers

    # Segments

    def _load(self, cursor: SnapshotCursor, now_ms: int) -> None:
        if cursor.fetched is not None:
            cursor.set_resident(cursor.fetched)
            return
        self._reads += 1
        try:
            cursor.set_resident(self._read(cursor, cursor.next))
        except StateDamagedError as error:
            self._rescue(cursor, error, now_ms)
        except StoreError as error:
            self._delay_retry(cursor, error, now_ms)

    def _delay_retry(self, cursor: SnapshotCursor, error: StoreError, now_ms: int) -> None:
        cursor.pause_ms = min(2 * cursor.pause_ms or _MIN_RETRY_DELAY_MS, _MAX_RETRY_DELAY_MS)
        cursor.blocked_until = now_ms + cursor.pause_ms
        logger.warning(
            "segment %d of snapshot %d could not be read, its ids wait for another try: %s",
            cursor.next,
            cursor.generation,
            error,
        )

    def _read(self, cursor: SnapshotCursor, number: int) -> Segment:
        if cursor.pending is not None:
            return Segment(cursor.pending[number])
        with self._metrics.counted("load"):
            return Segment(self._store.segment(cursor.generation, number))

    def _rescue(self, cursor: SnapshotCursor, error: StateDamagedError, now_ms: int) -> None:
        """A segment is not what was written: its ids are those of the snapshot that are in no other
        segment of it; they come due at the last time that one of them may have been due."""
        try:
            meta = snapshot.decoded(
                self._store.meta(cursor.generation), f"snapshot {cursor.generation}"
            )
            ids, latest = meta.ids, 0
            for number in range(len(cursor.firsts)):
                try:
                    ids -= self._read(cursor, number).ids()
                except StateDamagedError:
                    latest = max(latest, meta.lasts[number])
        except StoreError as other:
            self._delay_retry(cursor, other, now_ms)
            return
        ids -= cursor.superseded
        ids &= self._membership.live
        logger.error(
            "segment %d of snapshot %d is damaged: its %d ids are known and come due together, at "
            "%d ms: %s",
            cursor.next,
            cursor.generation,
            len(ids),
            latest,
            error,
        )
        self._metrics.segments_rescued += 1
        cursor.next += 1
        self._on_rescued(latest, ids.to_array())

    def to_fetch(self) -> SnapshotCursor | None:
        """Return a snapshot whose next segment should be read in advance, or None.

        Looks at the snapshots whose keys are due first, as far as is known. There are several where
        one due time has more keys than a head.
        """
        fronts = self._fronts
        at, first = [0], fronts[0][0] if fronts else 0
        while at:
            position = at.pop()
            if position < len(fronts) and fronts[position][0] == first:
                cursor = self._cursors.get(fronts[position][1])
                if cursor is not None and cursor.wants_next():
                    return cursor
                at += (2 * position + 1, 2 * position + 2)
        return None

    def fetch(self, cursor: SnapshotCursor) -> Steps:
        """Read the segment after the resident one."""
        number = cursor.next
        try:
            segment = yield ThreadTasks(self._read_in_thread(cursor, number))
        except StoreError:  # whoever needs it reads it again, and judges
            cursor.not_fetched = number
            return
        if cursor.next == number:
            cursor.fetched = segment

    def _read_in_thread(
        self, cursor: SnapshotCursor, number: int
    ) -> Generator[None, None, Segment]:
        segment = self._read(cursor, number)
        yield
        return segment

    def check(self) -> None:
        """Walk the invariants; for tests."""
        bounds = {generation: bound for bound, generation in self._fronts}
        assert len(bounds) == len(self._fronts) and bounds.keys() == self._queued_generations
        found = BitMap64()
        for cursor in self:
            if cursor.edge >= 0:
                assert bounds[cursor.generation] <= cursor.edge, cursor.generation
            for number in self._rest(cursor):
                if number in self._membership.live and number not in cursor.superseded:
                    assert number not in found, "an id has two copies that count"
                    found.add(number)
        assert found == self._membership.live, "an id has no copy"

    def _rest(self, cursor: SnapshotCursor) -> Iterator[int]:
        if cursor.resident is not None:
            yield from cursor.resident.rest()
        for number in range(cursor.next, len(cursor.firsts)):
            yield from self._read(cursor, number).ids()
        if cursor.cutter is not None:
            for _, numbers in cursor.cutter.rows:
                yield from numbers
