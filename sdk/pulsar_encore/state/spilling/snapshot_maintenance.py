"""`SnapshotMaintenance`: seals heads, merges and trims snapshots, and commits manifests.

A new snapshot is written first, then a manifest that names it. Only then is the data that it
replaces removed. After a crash or an error, the manifest therefore decides which snapshots exist.
One manifest is written at a time, and it describes one moment. A snapshot that could not be written
stays in memory and is retried.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final

from pyroaring import BitMap64

from ...errors import StateDamagedError, StoreError
from ..blobs.blob_store import BlobStore
from . import manifest, snapshot_meta
from . import snapshot_merge as merging
from .head_journal import HeadJournal
from .heads import Heads
from .journal_records import put
from .key_numbers import by_slot
from .manifest import Manifest
from .membership import Membership
from .segments import Row, Segment, SegmentWriter
from .snapshot_cursor import SnapshotCursor
from .snapshot_meta import SnapshotMeta
from .snapshots import Snapshots
from .spilling_metrics import SpillingMetrics
from .stepwise_work import Steps, Tasks, ThreadTasks

logger: logging.Logger = logging.getLogger(__name__)

_MAX_TRIES: Final = 4  # as Pulsar: one try and three retries
_ROWS_PER_STEP: Final = 32
_IDS_PER_STEP: Final = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class MaintenanceLimits:
    """Limits at which the tasks of `SnapshotMaintenance` start.

    Attributes:
        head: Number of keys at which the head is sealed.
        cut: Maximum keys in a segment, and its maximum time span in ms.
        snapshots: Merge when there are more snapshots than this; 0 or less: never.
        journal_bytes: Size at which the journal is replaced by a seal or a checkpoint.
        retry_s: Delay before a failed task is retried.
        sync: Writes are synced to the disk.
        transient: No manifest is written, so nothing survives the process.
    """

    head: int
    cut: tuple[int, int]
    snapshots: int
    journal_bytes: int
    retry_s: float
    sync: bool
    transient: bool = False


class SnapshotMaintenance:
    """Writes the snapshots of one index, and removes them.

    Args:
        next_journal: Number of the next journal.
    """

    def __init__(
        self,
        store: BlobStore,
        *,
        tasks: Tasks,
        heads: Heads,
        membership: Membership,
        snapshots: Snapshots,
        journal: HeadJournal | None,
        metrics: SpillingMetrics,
        limits: MaintenanceLimits,
        clock: Callable[[], float],
        start: Manifest,
        next_journal: int,
    ) -> None:
        self._store = store
        self._tasks = tasks
        self._heads = heads
        self._membership = membership
        self._snapshots = snapshots
        self._journal = journal
        self._metrics = metrics
        self._limits = limits
        self._clock = clock
        self._sync = limits.sync
        self._cut = limits.cut
        self._next_generation = start.next_generation
        self._first_journal = start.first_journal
        self._next_journal = next_journal
        self._committing = False
        self._copied_bytes = 0  # bytes of the journal that every new one starts with
        # The snapshot of the head that is being sealed, or waits to be written.
        self._filling: SnapshotCursor | None = None
        self._meta = SnapshotMeta()  # meta of `_filling`
        self._journal_after_seal = 0  # the first journal that is needed after the seal
        # Numbers of `_filling` that older snapshots have, too.
        self._duplicated = BitMap64()
        # The ones with an older copy that is stale even if the seal is never committed.
        self._left_for_certain = BitMap64()
        self._merging_into: SnapshotCursor | None = None
        self._garbage: list[Callable[[], None]] = []
        self.error: StoreError | None = None  # of the last task; None if it succeeded
        self.failed: dict[str, StoreError] = {}  # by task, until it succeeds
        self._retry_at: dict[str, float] = {}  # by failed task
        self._committed_at = 0  # `Membership.departed` at the last manifest; -1: unknown
        self._trimmed_at = 0

    def start_due_tasks(self) -> None:
        """Start each task that is due and not running."""
        tasks, limits, membership = self._tasks, self._limits, self._membership
        journal = self._journal
        if journal is not None:
            journal.retry()
            if journal.sync_is_due() and self._can_start("sync"):
                self._start_task("sync", journal.sync_steps())
        departed = membership.departed
        full = journal is not None and (
            journal.size - self._copied_bytes > limits.journal_bytes or journal.lost
        )
        if (
            self._filling is not None
            or len(self._heads.head) >= limits.head
            or (full and len(self._heads))
        ) and self._can_start("seal"):
            self.seal()
        if "checkpoint" in tasks or "trim" in tasks:
            return
        snapshots = self._snapshots
        if (
            "merge" not in tasks
            and (
                (
                    4 * len(snapshots.ended) > len(snapshots)
                    and 4 * snapshots.count_unneeded() > len(snapshots)
                )
                or departed - self._trimmed_at >= max(limits.head, len(membership))
            )
            and self._can_start("trim")
        ):
            self.trim()
        elif (
            (full and not self.sealing)
            or (
                journal is None
                and not limits.transient
                and departed - self._committed_at >= max(limits.head, len(membership) // 8)
            )
        ) and self._can_start("checkpoint"):
            self.checkpoint()
        elif (
            0 < limits.snapshots < len(snapshots) - len(snapshots.ended)
            and self._can_start("merge")
            and len(self.mergeable()) > max(limits.snapshots, 1)
        ):
            self.merge()

    def _can_start(self, name: str) -> bool:
        if name in self._tasks:
            return False
        return name not in self._retry_at or self._clock() >= self._retry_at[name]

    def _start_task(self, name: str, steps: Steps) -> None:
        self._tasks.start(name, self._with_retry(name, steps))

    @property
    def uncommitted(self) -> bool:
        return self._membership.departed != self._committed_at

    @property
    def sealing(self) -> bool:
        return self._filling is not None

    def discard_all(self) -> None:
        """Stop all tasks and discard every snapshot, because the index was cleared."""
        obsolete = [
            *self._snapshots,
            *([self._merging_into] if self._merging_into is not None else []),
        ]
        self._tasks.stop()
        self._duplicated, self._left_for_certain = BitMap64(), BitMap64()
        self._filling = self._merging_into = None
        self._discard(obsolete)
        self._committed_at = -1

    # Sealing

    def seal(self) -> None:
        self._start_task("seal", self._seal_steps())

    def _seal_steps(self) -> Steps:
        if self._filling is None:
            yield from self._fill_steps()
        cursor = self._filling
        assert cursor is not None and cursor.pending is not None
        if cursor.total:
            with self._metrics.counted("create"):
                yield ThreadTasks(self._write_snapshot(cursor, self._meta))
        yield from self._commit(add=cursor)

    def _fill_steps(self) -> Steps:
        membership = self._membership
        self._journal_after_seal = self._rotate_journal()
        old = self._heads.rotate()
        cursor = SnapshotCursor(self._take_generation(), array("Q"), 0)
        cursor.pending = []
        self._meta = SnapshotMeta()
        cutter = cursor.cutter = SegmentWriter(*self._cut, self._segment)
        self._filling = cursor
        self._snapshots.add(cursor)
        rows: list[Row] = []
        ids = 0
        while (edge := old.next_due()) is not None:
            # Take no more than fits into the segment. The batch has the lowest keys of its edge,
            # and the others go into the next segment, so keys are in order across segments.
            batch = old.pop_due(edge, min(cutter.remaining() - ids, _IDS_PER_STEP))
            numbers = membership.slots.claim_numbers(batch)
            rows.append((edge, numbers))
            ids += len(numbers)
            if len(rows) >= _ROWS_PER_STEP or ids >= min(cutter.remaining(), _IDS_PER_STEP):
                self._move_rows(cursor, rows)
                rows, ids = [], 0
                yield None
        self._move_rows(cursor, rows)
        cutter.cut()
        cursor.cutter = None
        self._heads.old = None

    def _move_rows(self, cursor: SnapshotCursor, rows: list[Row]) -> None:
        membership, cutter = self._membership, cursor.cutter
        assert cutter is not None
        numbers = array("Q", sorted(chain.from_iterable(row for _, row in rows)))
        older = BitMap64(numbers) & membership.left
        if older:  # mark the older copies before the new ones are live
            self._duplicated |= older
            self._left_for_certain |= older - membership.shadowed
            self._snapshots.supersede(older, cursor)
            if self._merging_into is not None:
                self._merging_into.supersede(older)
        membership.add_sealed(numbers)
        self._meta.ids.update(numbers)
        for slot, _ in by_slot(numbers):
            self._meta.slots[slot] = membership.slots.block(slot)
        for edge, row in rows:
            cutter.add(edge, row)
        cursor.total += len(numbers)
        self._snapshots.update_front(cursor)

    def _finish_seal(self) -> None:
        cursor, self._filling = self._filling, None
        assert cursor is not None
        self._duplicated, self._left_for_certain = BitMap64(), BitMap64()
        for each in self._snapshots:
            each.superseded_uncommitted = BitMap64()
        if self._merging_into is not None:
            self._merging_into.superseded_uncommitted = BitMap64()
        cursor.pending = None
        if cursor.total:
            self._snapshots.mark_stored(cursor)
        else:
            self._snapshots.remove([cursor])

    def _segment(self, first: int, last: int, count: int, data: bytes) -> None:
        cursor = self._filling
        assert cursor is not None and cursor.pending is not None
        self._meta.add_segment(first, last, count)
        cursor.firsts.append(first)
        cursor.pending.append(data)

    def _write_snapshot(
        self, cursor: SnapshotCursor, meta: SnapshotMeta
    ) -> Generator[None, None, None]:
        assert cursor.pending is not None
        for left in reversed(range(_MAX_TRIES)):
            try:
                writer = self._store.create(cursor.generation)
                try:
                    for data in cursor.pending:
                        writer.append(data)
                        yield
                    encoded = snapshot_meta.encoded(meta)
                    yield
                    writer.commit(encoded, sync=self._sync)
                finally:
                    writer.abort()
                cursor.size = self._store.size(cursor.generation)
                return
            except StoreError:
                if not left:
                    raise
            yield

    def _take_generation(self) -> int:
        self._next_generation += 1
        return self._next_generation - 1

    # Merging

    def merge(self) -> None:
        self._start_task("merge", self._merge_steps())

    def _merge_steps(self) -> Steps:
        old = self.mergeable()
        if len(old) < 2:  # some have been handed over since `start_due_tasks`
            return
        sources = old[merging.choose([each.total - each.handed for each in old])]
        cursor = self._merging_into = SnapshotCursor(self._take_generation(), array("Q"), 0)
        cursor.supersede(self._duplicated)
        damaged: list[SnapshotCursor] = []
        try:
            with self._metrics.counted("merge"):
                superseded = [each.committed_superseded for each in sources]
                meta = yield ThreadTasks(
                    self._merge_snapshots(cursor, sources, superseded, damaged)
                )
            cursor.firsts, cursor.total = meta.firsts, len(meta.ids)
            if not cursor.total:
                yield from self._commit(drop=sources)
                return
            yield from self._commit(add=cursor, drop=sources)
        except StoreError:
            self._discard([cursor])  # only after the next manifest: this one may name it
            for each in damaged:
                each.damaged = True
            raise
        finally:
            self._merging_into = None

    def mergeable(self) -> list[SnapshotCursor]:
        """Return the snapshots that can be merged, by generation.

        A corrupted snapshot cannot: its corrupted segment is given up when it is due.
        """
        cursors = (
            each
            for each in self._snapshots
            if each.pending is None and each.edge >= 0 and not each.damaged
        )
        return sorted(cursors, key=lambda each: each.generation)

    def _merge_snapshots(
        self,
        cursor: SnapshotCursor,
        sources: list[SnapshotCursor],
        superseded: list[BitMap64],
        damaged: list[SnapshotCursor],
    ) -> Generator[None, None, SnapshotMeta]:
        writer = self._store.create(cursor.generation)
        try:
            parts = []
            for source, stale in zip(sources, superseded, strict=True):
                meta = snapshot_meta.read(self._store, source.generation)
                yield
                parts.append((meta, stale, self._reader(source, damaged)))
            work = merging.SnapshotMerge(parts, self._membership.wanted, self._cut, writer.append)
            yield from work.steps()
            if work.meta.counts:
                yield
                encoded = snapshot_meta.encoded(work.meta)
                yield
                writer.commit(encoded, sync=self._sync)
                cursor.size = self._store.size(cursor.generation)
            return work.meta
        finally:
            writer.abort()

    def _reader(
        self, cursor: SnapshotCursor, damaged: list[SnapshotCursor]
    ) -> Callable[[int], Segment]:
        def read(number: int) -> Segment:
            try:
                return Segment(self._store.segment(cursor.generation, number))
            except StateDamagedError:
                damaged.append(cursor)
                raise

        return read

    # Trimming

    def trim(self) -> None:
        self._start_task("trim", self._trim_steps())

    def _trim_steps(self) -> Steps:
        first = self._first_needed_journal()
        self._trimmed_at = self._membership.departed
        looked_at = [each for each in self._snapshots if each.pending is None]
        superseded = [each.committed_superseded for each in looked_at]
        wanted, copies = yield ThreadTasks(self._find_wanted(looked_at, superseded))
        kept: list[SnapshotCursor] = []
        unwanted: list[SnapshotCursor] = []
        for cursor, number in zip(looked_at, wanted, strict=True):
            cursor.wanted = number
            (kept if number >= 0 else unwanted).append(cursor)
        yield from self._commit(drop=unwanted, first_journal=first)
        # Only after the commit: if it fails, the snapshots stay, and so must their numbers in
        # `left`.
        if list(self._snapshots) == kept:  # else `copies` lacks those of a new snapshot
            self._membership.left &= copies

    def _find_wanted(
        self, cursors: list[SnapshotCursor], superseded: list[BitMap64]
    ) -> Generator[None, None, tuple[list[int], BitMap64]]:
        """Return a number that each snapshot must keep, or -1, and all numbers of needed snapshots.

        Keys are done in about the order in which they were taken. The highest number is needed
        longest.
        """
        found, copies = [], BitMap64()
        for cursor, stale in zip(cursors, superseded, strict=True):
            ids = snapshot_meta.read_ids(self._store, cursor.generation)
            wanted = self._membership.wanted(ids - stale if stale else ids)
            found.append(wanted.max() if wanted else -1)
            if wanted:
                copies |= ids
            yield
        return found, copies

    # Committing

    def checkpoint(self) -> None:
        self._start_task("checkpoint", self._checkpoint_steps())

    def _checkpoint_steps(self) -> Steps:
        # The manifest names the departed keys. The journal is then not needed for them.
        yield from self._commit(first_journal=self._first_needed_journal())

    def _first_needed_journal(self) -> int:
        """Return the first journal that is still needed after a commit.

        If the heads are empty, start a new journal first: the manifest then replaces all older
        ones.
        """
        return self._first_journal if len(self._heads) or self.sealing else self._rotate_journal()

    def _rotate_journal(self) -> int:
        self._copied_bytes = 0
        return self._next_journal if self._journal is None else self._journal.rotate()

    def _commit(
        self,
        *,
        add: SnapshotCursor | None = None,
        drop: list[SnapshotCursor] | None = None,
        first_journal: int | None = None,
    ) -> Steps:
        while self._committing:
            yield None
        self._committing = True
        try:
            sealed = add is not None and add is self._filling
            first = self._journal_after_seal if sealed else (first_journal or self._first_journal)
            first = max(first, self._first_journal)
            if self._journal is not None and first > self._first_journal:
                # Keys that were taken from a head and are not done are in no snapshot. Copy them
                # from the obsolete journals into the current one.
                for taken in self._heads.taken.walk():
                    self._journal.flush()  # first, because a long backlog may be dropped
                    data = b"".join([put(key, edge, 0) for key, edge in taken])
                    self._journal.write(data)
                    self._journal.flush()
                    self._copied_bytes += len(data)
                    yield None
                self._journal.flush()
                yield from self._journal.sync_steps(first)
            self._committed_at = self._membership.departed
            if not self._limits.transient:
                new_manifest = self._new_manifest(add, drop or [], first, sealed=sealed)
                yield ThreadTasks(self._write_manifest(new_manifest))
            obsolete = range(self._first_journal, first)
            self._first_journal = first
            if self._journal is not None:
                self._journal.forget(first)
            if sealed:
                self._finish_seal()
        except BaseException:
            self._committed_at = -1
            raise
        finally:
            self._committing = False
        if add is not None and not sealed:
            self._snapshots.add(add)
        self._snapshots.remove(drop or [])
        self._discard(drop or [])
        self._garbage += [partial(self._store.delete_journal, number) for number in obsolete]
        yield ThreadTasks(self._remove_garbage())

    def _new_manifest(
        self, add: SnapshotCursor | None, drop: list[SnapshotCursor], first: int, *, sealed: bool
    ) -> Manifest:
        blobs = {
            each.generation: each.superseded if sealed else each.committed_superseded
            for each in self._snapshots
            if each.pending is None and each not in drop
        }
        if add is not None and add.total:
            blobs[add.generation] = add.superseded if sealed else add.committed_superseded
        # A crash may lose the copy of a shadowed key in the head. Its old copy must then come due.
        left = self._membership.left - self._membership.shadowed
        if not sealed:
            left |= self._left_for_certain
        return Manifest(
            self._next_generation,
            first,
            self._membership.slots.next,
            dict(sorted(blobs.items())),
            left,
        )

    def _write_manifest(self, new_manifest: Manifest) -> Generator[None, None, None]:
        data = manifest.encoded(new_manifest)
        yield
        for left in reversed(range(_MAX_TRIES)):
            try:
                self._store.write_manifest(data, sync=self._sync)
                return
            except StoreError:
                if not left:
                    raise
            yield

    def _discard(self, cursors: list[SnapshotCursor]) -> None:
        self._garbage += [partial(self._store.delete, each.generation) for each in cursors]

    def _remove_garbage(self) -> Generator[None, None, None]:
        garbage, self._garbage = self._garbage, []
        for at, remove in enumerate(garbage):
            try:
                with self._metrics.counted("delete"):
                    remove()
            except StoreError as error:
                self._garbage += garbage[at:]
                logger.warning("obsolete data could not be removed, retrying later: %s", error)
                return
            yield

    def _with_retry(self, name: str, steps: Steps) -> Generator[Any, Any, None]:
        try:
            yield from steps
        except StoreError as error:
            self.error = self.failed[name] = error
            self._retry_at[name] = self._clock() + self._limits.retry_s
            logger.warning(
                "snapshot task %s failed and will be retried; no message id is lost: %s",
                name,
                error,
            )
        else:
            self.error = None
            self.failed.pop(name, None)
            self._retry_at.pop(name, None)
