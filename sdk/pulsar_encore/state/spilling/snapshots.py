"""`Snapshots`: the snapshots of an index, ordered by their next due times.

A heap has a lower bound for each snapshot, which is updated when it reaches the front. The earliest
due time is therefore exact, and only segments that are nearly due are read.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator
from heapq import heappop, heappush, heapreplace
from typing import Final

from pyroaring import BitMap64

from ...core.message_key import MessageKey
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
    """The snapshots of one index.

    Args:
        rescue: Called for a corrupted segment with its latest due time and its numbers.
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
        self._queued_generations: set[int] = set()  # generations in `_fronts`
        self._reads = 0  # segments that were not read in advance
        self.ended: set[int] = set()  # generations that are completely handed over

    def __len__(self) -> int:
        return len(self._cursors)

    def __iter__(self) -> Iterator[SnapshotCursor]:
        return iter(self._cursors.values())

    def add(self, cursor: SnapshotCursor) -> None:
        self._cursors[cursor.generation] = cursor
        self.update_front(cursor)

    def update_front(self, cursor: SnapshotCursor) -> None:
        if cursor.edge >= 0 and cursor.generation not in self._queued_generations:
            heappush(self._fronts, (cursor.edge, cursor.generation))
            self._queued_generations.add(cursor.generation)

    def remove(self, cursors: Iterable[SnapshotCursor]) -> None:
        for cursor in cursors:
            self._cursors.pop(cursor.generation, None)
            self.ended.discard(cursor.generation)

    def mark_stored(self, cursor: SnapshotCursor) -> None:
        if cursor.edge < 0:
            self.ended.add(cursor.generation)

    def count_unneeded(self) -> int:
        return sum(not self._still_needed(self._cursors[generation]) for generation in self.ended)

    def _still_needed(self, cursor: SnapshotCursor) -> bool:
        number = cursor.wanted
        if number < 0 or not self._membership.wants(number):
            return False
        return number not in cursor.superseded or number in cursor.superseded_uncommitted

    def clear(self) -> None:
        self._cursors.clear()
        self._fronts.clear()
        self._queued_generations.clear()
        self.ended.clear()

    def supersede(self, numbers: BitMap64, newest: SnapshotCursor) -> None:
        for cursor in self._cursors.values():
            if cursor is not newest:
                cursor.supersede(numbers)

    # Due keys

    def next_due(self, now_ms: int | None = None) -> int | None:
        """Return the earliest time at which a live key is due, or None.

        `now_ms`, if given, prepares the rows that are due by then for `take`.
        """
        fronts = self._fronts
        while fronts:
            bound, generation = fronts[0]
            cursor = self._cursors.get(generation)
            # Each pass makes the front of the heap more exact, until it is a live key or blocked.
            if cursor is None or (edge := cursor.edge) < 0:
                heappop(fronts)
                self._queued_generations.discard(generation)
                if cursor is not None and cursor.pending is None:
                    self.ended.add(generation)
            elif edge != bound:  # the bound was too low
                heapreplace(fronts, (edge, generation))
            elif cursor.resident is not None:
                if self._membership.any_live(cursor.front()):
                    return edge
                cursor.drop()
            elif cursor.next >= len(cursor.firsts):  # the next row is in a segment that is not cut
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
        """Return the snapshots with live keys at the earliest edge, prepared for `take`.

        None if that needs more than `most` reads of segments. The next call needs fewer.
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
        """Iterate over the live keys of the front row, in order of ledger, entry and index.

        The next segment of the snapshot may have further, higher keys of the same edge.
        """
        key_of, live = self._membership.slots.key_of, self._membership.live
        return (key_of(number) for number in self._row_in_key_order(cursor) if number in live)

    def _row_in_key_order(self, cursor: SnapshotCursor) -> Numbers:
        segment = cursor.resident
        assert segment is not None
        if not segment.in_key_order:
            live = self._membership.select_live(segment.front())
            segment.keep(self._membership.slots.in_key_order(live))
            segment.in_key_order = True
        return segment.front()

    def take(self, cursor: SnapshotCursor, limit: int) -> Numbers:
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
            "segment %d of snapshot %d could not be read, and will be retried: %s",
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
        """Give up a corrupted segment, and pass its keys to `rescue`.

        Its keys are those of the snapshot that are in no other segment.
        """
        try:
            meta = snapshot.read(self._store, cursor.generation)
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
        """Return a snapshot with a segment that should be read in advance, or None.

        Several snapshots have the earliest due time if it has more keys than a head.
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
        number = cursor.next
        try:
            segment = yield ThreadTasks(self._read_in_thread(cursor, number))
        except StoreError:  # the segment is read again when it is needed, which handles errors
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
