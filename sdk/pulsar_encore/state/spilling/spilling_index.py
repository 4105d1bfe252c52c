"""`SpillingIndex`: a due index that keeps most keys on disk, after Pulsar's PIP-195.

New keys go to a *head* in memory, and to a journal if there is one. A full head is sealed: it
becomes an immutable snapshot of segments, ordered by due time. Only the segment that is due next is
in memory. A key is in a head or live in `Membership`, never both.

Due times are on the caller's clock. A durable index needs the wall clock, which continues after a
restart. If that clock is set back, keys wait longer by as much; no key is lost or early.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from heapq import heapify, heappop, heapreplace
from typing import Final

from ...core.bucket_width import bucket_edge
from ...core.message_key import DueBatch, MessageKey
from ...core.time_bucket import TimeBucketIndex
from ...errors import ClosedError, ConfigurationError, StoreError
from ..blobs.blob_store import BlobStore
from . import journal_records as records
from .head_journal import Fsync, HeadJournal
from .heads import MAX_DUE_MS, Heads
from .index_recovery import open_store
from .key_numbers import Numbers, merge_batches
from .membership import Membership
from .snapshot_cursor import SnapshotCursor
from .snapshot_maintenance import MaintenanceLimits, SnapshotMaintenance
from .snapshots import Snapshots
from .spilling_metrics import MetricSample, SpillingMetrics, SpillingStatistics, samples
from .stepwise_work import Tasks

_MAX_READS: Final = 8  # segments that one call reads, about 4 ms
_MAX_CALLS_PER_STEP: Final = 16  # calls between two steps of other work


class SpillingIndex:
    """A `DueIndex` with the keys that are due soon in memory, and about one bit for any other key.

    A context manager. A key is (ledger, entry, batch index); the batch index is -1 for an unbatched
    message. Due times are in ms, rounded up to a bucket of ``2**bits`` ms. Only one thread may use
    the index.

    An index continues where an earlier one on the same store was closed or crashed. Without a
    journal, a crash loses keys that were added since the last `flush` or snapshot, and taken keys
    that were in no snapshot yet; the broker still has the messages. It also forgets keys that were
    discarded or done since then, so they come due again.

    Args:
        blobs: The store. It is closed with the index.
        min_index_count_per_bucket: Keys in the head that make a snapshot (Pulsar:
            delayedDeliveryMinIndexCountPerBucket).
        max_time_step_per_bucket_snapshot_segment_seconds: Maximum time span of a segment
            (delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds).
        max_indexes_per_bucket_snapshot_segment: Maximum keys in a segment; -1: any number
            (delayedDeliveryMaxIndexesPerBucketSnapshotSegment).
        max_num_buckets: If there are more snapshots, they are merged; -1: never
            (delayedDeliveryMaxNumBuckets).
        journal: Whether changes of the head are written to a journal.
        fsync: When writes survive a loss of power; they always survive the death of the process.
            ``"always"``: before the call returns. ``"interval"``: after at most `fsync_interval_s`,
            if there are calls. ``"none"``: when the system writes them.
        fsync_interval_s: See `fsync`.
        max_journal_bytes: A longer journal is replaced by a snapshot.
        retry_s: Delay before a failed write is retried.
        executor: Runs long work, for example on a thread of its own. With None, or after it was
            shut down, the work is done in small steps within the calls. The index never shuts it
            down.
        clock: Seconds since any origin, for intervals.
        transient: The store is empty and ends with this index. There is no journal, no manifest and
            no fsync. `close` writes nothing and does not wait for a step in the executor; `blobs`
            are closed when that step has ended.
        on_work: Called when work in steps begins: then call `maintain` until it returns False.
            Otherwise, other calls do the work. A `pop_due` with a limit below the number of keys
            may then return fewer keys than are due, even none, because one call reads only a few
            segments; `next_due` shows that keys are still due.

    Raises:
        ConfigurationError: if an argument is out of range.
        StateInUseError: if the store has another owner. The text names it.
        StateDamagedError: if stored data is corrupted.
        StateFormatError: if another version, or another program, wrote the store.
        StoreError: if the store cannot be opened or read.

    Example:
        Take due keys, and continue after a restart::

            with SpillingIndex(DirectoryBlobs("/var/lib/orders/due")) as index:
                index.add((ledger, entry, -1), due_ms, 0)
                batch = index.pop_due(now_ms)
                for key in batch:
                    handle(key)
                index.done(batch)
    """

    def __init__(
        self,
        blobs: BlobStore,
        *,
        min_index_count_per_bucket: int = 50_000,
        max_time_step_per_bucket_snapshot_segment_seconds: float = 300,
        max_indexes_per_bucket_snapshot_segment: int = 5000,
        max_num_buckets: int = -1,
        journal: bool = True,
        fsync: Fsync = "interval",
        fsync_interval_s: float = 1.0,
        max_journal_bytes: int = 8 << 20,
        retry_s: float = 60.0,
        executor: Executor | None = None,
        clock: Callable[[], float] = time.monotonic,
        transient: bool = False,
        on_work: Callable[[], object] | None = None,
    ) -> None:
        step_s = max_time_step_per_bucket_snapshot_segment_seconds
        most = max_indexes_per_bucket_snapshot_segment
        if not callable(getattr(blobs, "write_manifest", None)):
            raise ConfigurationError(
                f"SpillingIndex needs a BlobStore, such as DirectoryBlobs(path), got {blobs!r}"
            )
        _check_integer("min_index_count_per_bucket", min_index_count_per_bucket, 1)
        _check("max_time_step_per_bucket_snapshot_segment_seconds", step_s, 0.001)
        _check_integer("max_num_buckets", max_num_buckets, -1)
        _check("fsync_interval_s", fsync_interval_s, 0)
        _check_integer("max_journal_bytes", max_journal_bytes, 1)
        _check("retry_s", retry_s, 0)
        _check_integer("max_indexes_per_bucket_snapshot_segment", most, -1)
        if most == 0:
            raise ConfigurationError(
                "max_indexes_per_bucket_snapshot_segment must be -1, for any number, or at least 1"
            )
        if not isinstance(journal, bool):
            raise ConfigurationError(f"journal must be True or False, got {journal!r}")
        if executor is not None and not isinstance(executor, Executor):
            raise ConfigurationError(
                f"executor must be a concurrent.futures.Executor or None, got {executor!r}"
            )
        if fsync not in ("none", "interval", "always"):
            raise ConfigurationError(f'fsync must be "none", "interval" or "always", not {fsync!r}')
        self._blobs = blobs
        self._closed = False
        self._calls_per_step = max(1, min(_MAX_CALLS_PER_STEP, min_index_count_per_bucket // 64))
        self._calls = 0
        self._min_sealed = min_index_count_per_bucket // 8
        self._prefetches = executor is not None
        self._metrics = metrics = SpillingMetrics(clock)
        self._tasks = Tasks(executor, on_work)
        self._transient = transient
        self._in_steps = on_work is not None
        if transient:
            journal, fsync = False, "none"
        self._heads = Heads(remembers_taken=not transient)
        self._membership = Membership()
        self._snapshots = Snapshots(blobs, self._membership, metrics, self._add_rescued)
        self._journal: HeadJournal | None = None
        limits = MaintenanceLimits(
            head=min_index_count_per_bucket,
            cut=(most, int(step_s * 1000)),
            snapshots=max_num_buckets,
            journal_bytes=max_journal_bytes,
            retry_s=retry_s,
            sync=fsync != "none",
            transient=transient,
        )
        blobs.open()
        try:
            found = open_store(
                blobs, self._heads, self._membership, self._snapshots, sync=limits.sync
            )
        except BaseException:
            blobs.close()
            raise
        metrics.journal_torn_bytes = found.torn
        if journal:
            self._journal = HeadJournal(
                blobs,
                found.journal,
                found=found.journals,
                size=found.size,
                fsync=fsync,
                interval_s=fsync_interval_s,
                retry_s=retry_s,
                clock=clock,
                metrics=metrics,
            )
        self._maintenance = SnapshotMaintenance(
            blobs,
            tasks=self._tasks,
            heads=self._heads,
            membership=self._membership,
            snapshots=self._snapshots,
            journal=self._journal,
            next_journal=found.journal,
            metrics=metrics,
            limits=limits,
            clock=clock,
            start=found.start,
        )

    def __enter__(self) -> SpillingIndex:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # `DueIndex`

    def __len__(self) -> int:
        return len(self._heads) + len(self._membership)

    def __contains__(self, key: MessageKey) -> bool:
        return key in self._heads or key in self._membership

    def add(self, key: MessageKey, due_ms: int, bits: int) -> bool:
        """Track a key. Return False if it is tracked already; then its due time stays.

        Raises:
            ConfigurationError: if the key, `due_ms` or `bits` is missing or out of range.
            ClosedError: if the index is closed.
        """
        self._check_open()
        try:
            return self._add(key, due_ms, bits)
        except (TypeError, ValueError):
            _check_arguments(key, due_ms, bits)
            raise

    def _add(self, key: MessageKey, due_ms: int, bits: int) -> bool:
        old = self._heads.old
        if key in self._membership or (old is not None and key in old):
            self._heads.head.discard(key)  # only checks the key: the head does not have it
            bucket_edge(due_ms, bits)
            return False
        if not self._heads.head.add(key, due_ms, bits):
            return False
        if len(self._heads.taken):
            self._heads.taken.discard(key)
        self._put(key, due_ms, bits)
        return True

    def move(self, key: MessageKey, due_ms: int, bits: int) -> bool:
        """Set the due time of a key, and track it if necessary. Return whether it was tracked.

        Raises:
            ConfigurationError: if the key, `due_ms` or `bits` is missing or out of range.
            ClosedError: if the index is closed.
        """
        self._check_open()
        try:
            was = self._heads.put(key, due_ms, bits)
        except (TypeError, ValueError):
            _check_arguments(key, due_ms, bits)
            raise
        return self._put(key, due_ms, bits) or was

    def _put(self, key: MessageKey, due_ms: int, bits: int) -> bool:
        was = self._membership.shadow(key)
        if self._journal is not None:
            self._journal.write(records.put(key, due_ms, bits))
        self._tick()
        return was

    def discard(self, key: MessageKey) -> bool:
        """Stop tracking a key. Return whether it was tracked.

        Raises:
            ConfigurationError: if the key is missing or out of range.
            ClosedError: if the index is closed.
        """
        self._check_open()
        before = self._membership.departed
        try:
            gone = self._heads.discard(key)
        except (TypeError, ValueError):
            _check_arguments(key)
            raise
        gone = self._membership.leave(key) or gone
        taken = len(self._heads.taken) > 0 and self._heads.taken.discard(key)
        if self._journal is not None and (gone or taken or self._membership.departed != before):
            self._journal.write(records.gone(key))
        self._tick()
        return gone

    def discard_entry(self, ledger: int, entry: int) -> int:
        """Stop tracking all keys of an entry. Return how many there were.

        Raises:
            ConfigurationError: if `ledger` or `entry` is out of range.
        """
        self._check_open()
        before = self._membership.departed
        gone = self._heads.discard_entry(ledger, entry)
        gone += self._membership.leave_entry(ledger, entry)
        taken = self._heads.taken.discard_entry(ledger, entry)
        if self._journal is not None and (gone or taken or self._membership.departed != before):
            self._journal.write(records.entry_gone(ledger, entry))
        self._tick()
        return gone

    def discard_through(self, ledger: int, entry: int) -> int:
        """Stop tracking all keys of an entry and of all before it. Return how many there were.

        Raises:
            ConfigurationError: if `ledger` or `entry` is out of range.
        """
        self._check_open()
        before = self._membership.departed
        gone = self._heads.discard_through(ledger, entry)
        gone += self._membership.leave_through(ledger, entry)
        taken = self._heads.taken.discard_through(ledger, entry)
        if self._journal is not None and (gone or taken or self._membership.departed != before):
            self._journal.write(records.through_gone(ledger, entry))
        self._tick()
        return gone

    def due_of(self, key: MessageKey) -> int | None:
        """Return the due time of a key in memory; None for a key on disk, and an unknown one."""
        return self._heads.due_of(key)

    def soonest(self, limit: int) -> list[tuple[int, MessageKey]]:
        """Return (due time, key) of the keys in memory that are due first. Keys on disk are not
        listed.
        """
        return self._heads.soonest(limit)

    def next_due(self) -> int | None:
        """Return the earliest time at which `pop_due` returns a key, or None if no key waits."""
        edge = self._heads.next_due()
        if not self._membership:
            return edge
        other = self._snapshots.next_due()
        if edge is None or other is None:
            return edge if other is None else other
        return min(edge, other)

    def pop_due(self, now_ms: int, limit: int | None = None) -> DueBatch:
        """Take the keys due at `now_ms`, the earliest bucket first. They stay on disk until `done`.

        If the limit ends within a bucket, the keys with the lowest ledger, entry and batch index
        are taken.

        A segment that cannot be read is retried, at first after 1 s, and its keys come later. A
        corrupted segment is given up. Its keys are known from the snapshot's meta, and come due
        together at the latest time at which one of them may have been due.

        Args:
            now_ms: The time in ms, on the clock of the due times.
            limit: Maximum number of keys. Further ones stay due.

        Raises:
            ConfigurationError: if `limit` is negative.
            ClosedError: if the index is closed.
        """
        if limit is not None:
            _check_integer("limit", limit, 0)
        self._check_open()
        batch = DueBatch()
        left = len(self) if limit is None else limit
        while left:
            edge = self._heads.next_due()
            if self._membership:
                other = self._snapshots.next_due(now_ms)
                if other is not None and (edge is None or other < edge):
                    edge = other
            if edge is None or edge > now_ms:
                break
            taken_count = self._take(edge, now_ms, left, batch)
            if not taken_count:
                break
            left -= taken_count
        self.maintain()
        return batch

    def _take(self, edge: int, now_ms: int, limit: int, into: DueBatch) -> int:
        snapshots, heads = self._snapshots, self._heads
        parts: list[DueBatch] = []
        left = limit
        while left:
            # Before the heads, because the keys of a corrupted segment move into the head. Reading
            # 200 segments, as for 10 million keys with delays up to a week, takes 80 ms.
            most = _MAX_READS if self._in_steps and left < len(self) else None
            cursors = snapshots.ready(edge, now_ms, most) if self._membership else []
            if cursors is None:
                break
            holders: list[TimeBucketIndex | SnapshotCursor] = [*heads.ready(edge), *cursors]
            if not holders:
                break
            counts = [left] * len(holders)
            if len(holders) > 1 and left < len(self):
                counts = self._shares(edge, holders, left)
            for holder, share in zip(holders, counts, strict=True):
                some = min(share, left)
                if not some:
                    continue
                if isinstance(holder, SnapshotCursor):
                    numbers = snapshots.take(holder, some)
                    parts.append(self._membership.slots.batch(numbers))
                else:
                    parts.append(heads.take(holder, edge, some))
                left -= len(parts[-1])
        bucket = merge_batches(parts)
        into.entries.extend(bucket.entries)
        into.indexes.extend(bucket.indexes)
        return limit - left

    def _shares(
        self, edge: int, holders: list[TimeBucketIndex | SnapshotCursor], limit: int
    ) -> list[int]:
        """Return how many of the lowest `limit` keys of an edge are in each head and snapshot.

        The count ends with the front segment of a snapshot: the next one may have more keys of the
        edge.
        """
        counts = [0] * len(holders)
        streams = []
        for at, holder in enumerate(holders):
            known = (
                self._snapshots.in_order(holder)
                if isinstance(holder, SnapshotCursor)
                else holder.in_order(edge)
            )
            streams.append((known, at))
        heap = [(key, at, known) for known, at in streams if (key := next(known, None)) is not None]
        heapify(heap)
        while heap and limit:
            _, at, known = heap[0]
            counts[at] += 1
            limit -= 1
            key = next(known, None)
            if key is not None:
                heapreplace(heap, (key, at, known))
            elif isinstance(holders[at], SnapshotCursor):
                break
            else:
                heappop(heap)
        return counts

    def done(self, batch: DueBatch) -> None:
        """Confirm taken keys: they do not come due again after a crash.

        Only the keys count, not the batch: a key that was added and taken again is confirmed by
        either of its batches.
        """
        self._check_open()
        membership, heads = self._membership, self._heads
        numbers = membership.taken_numbers(batch)
        keys = heads.mark_done(batch)
        if self._journal is not None and (numbers or keys):
            if len(numbers) + len(keys) < len(batch):  # the other keys are in a head again
                batch = merge_batches([membership.slots.batch(numbers), _batch(keys)])
            self._journal.write(records.done(batch))
        if membership.shadowed:
            membership.unshadow(
                key for key in membership.select_shadowed(batch) if key not in heads
            )
        membership.mark_done(numbers)
        self._tick()

    def clear(self) -> None:
        """Stop tracking all keys. Later steps remove the stored data."""
        self._check_open()
        if not (len(self._snapshots) or self._heads or self._heads.taken or self._tasks):
            return
        if self._journal is not None:
            self._journal.write(records.clear())
        self._maintenance.discard_all()
        self._heads.clear()
        self._membership.clear()
        self._snapshots.clear()
        self._maintenance.checkpoint()

    def _check(self) -> None:
        self._heads._check()
        self._membership.check()
        self._snapshots.check()
        live = self._membership.live.to_array()
        assert not any(key in self._heads for key in self._membership.slots.batch(live))

    # The store

    def flush(self) -> None:
        """Return when all changes survive a loss of power.

        With ``fsync="none"``, return when they survive the death of the process. A journal is
        written and synced, including writes of an earlier index. Without one, or if it fails, the
        head becomes a snapshot, however small.

        Raises:
            StoreError: if a write or sync failed. The changes are in memory, and are retried.
        """
        self._check_open()
        if self._journal is not None:
            with suppress(StoreError):  # a snapshot may fit where the journal does not
                self._journal.flush()
                self._journal.sync()
            if not self._journal.waiting:
                return
        self._tasks.finish()
        maintenance, journal = self._maintenance, self._journal
        while (
            maintenance.sealing
            or len(self._heads)
            or maintenance.uncommitted
            or (journal is not None and journal.waiting)
        ):
            maintenance.seal()
            self._tasks.finish()
            if maintenance.error is not None:
                raise maintenance.error

    def close(self) -> None:
        """Flush, and release the store. A second call does nothing.

        A long head is sealed, so that the next start need not read it from the journal.

        Raises:
            StoreError: as `flush` does. Unwritten changes are lost: added keys may be missing at
                the next start, and discarded or done keys may come due again. The store is
                released.
        """
        if self._closed:
            return
        try:
            if self._transient:
                return
            if self._journal is None:
                self._heads.reclaim()  # taken keys of snapshots are still stored, and due again
            self.flush()
            if len(self._heads) > self._min_sealed:
                self._tasks.finish()
                self._maintenance.seal()
                self._tasks.finish()
        finally:
            self._tasks.stop()
            self._closed = True
            if not self._transient:
                self._tasks.wait()
            self._tasks.when_ended(self._blobs.close)

    def maintain(self) -> bool:
        """Do a bounded step of work in the store. Return whether there is more.

        Some other calls do this too. It is for owners with spare time, or with few other calls.
        """
        self._check_open()
        self._tasks.step()
        self._maintenance.start_due_tasks()
        if self._prefetches and "fetch" not in self._tasks:
            cursor = self._snapshots.to_fetch()
            if cursor is not None:
                self._tasks.start("fetch", self._snapshots.fetch(cursor))
        return bool(self._tasks)

    def statistics(self) -> SpillingStatistics:
        """Return counts for monitoring."""
        journal, metrics = self._journal, self._metrics
        return SpillingStatistics(
            bucket_total=len(self._snapshots) + 1,
            loaded=len(self._heads) + sum(cursor.loaded for cursor in self._snapshots),
            bucket_snapshot_size_bytes=sum(cursor.size for cursor in self._snapshots),
            operations=metrics.operations(),
            journal_size_bytes=journal.stored if journal is not None else 0,
            journal_failed=metrics.journal_failed,
            journal_torn_bytes=metrics.journal_torn_bytes,
            segments_rescued=metrics.segments_rescued,
            error=next((str(error) for error in self._maintenance.failed.values()), None),
        )

    def metrics(self, labels: Mapping[str, str] | None = None) -> list[MetricSample]:
        """Return the metrics of PIP-195, named and labelled as Pulsar's broker does.

        Args:
            labels: Labels of every sample, such as `topic` and `subscription`.
        """
        return samples(self.statistics(), labels or {})

    def _add_rescued(self, due_ms: int, numbers: Numbers) -> None:
        due_ms = min(due_ms, MAX_DUE_MS)
        for key in self._membership.slots.batch(numbers):
            self._heads.put(key, due_ms, 0)
            self._membership.shadow(key)
            if self._journal is not None:
                self._journal.write(records.put(key, due_ms, 0))

    def _tick(self) -> None:
        self._calls += 1
        if self._calls >= self._calls_per_step:
            self._calls = 0
            self.maintain()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the index is closed")


def _batch(keys: list[MessageKey]) -> DueBatch:
    entries: dict[int, list[int]] = {}
    masks: dict[tuple[int, int], int] = {}
    for ledger, entry, index in keys:
        if index < 0:
            entries.setdefault(ledger, []).append(entry)
        else:
            masks[ledger, entry] = masks.get((ledger, entry), 0) | 1 << index
    return DueBatch(
        [(ledger, sorted(some)) for ledger, some in entries.items()],
        [(*name, mask) for name, mask in masks.items()],
    )


def _check(name: str, value: float, minimum: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigurationError(f"{name} must be a number, got {value!r}")
    if not minimum <= value < math.inf:
        raise ConfigurationError(f"{name} must be at least {minimum:g} and finite, got {value!r}")


def _check_integer(name: str, value: int, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(f"{name} must be a whole number, got {value!r}")
    if value < minimum:
        raise ConfigurationError(f"{name} must be at least {minimum}, got {value}")


def _check_arguments(key: object, due_ms: object = 0, bits: object = 0) -> None:
    if not (isinstance(key, tuple) and len(key) == 3 and all(isinstance(n, int) for n in key)):
        raise ConfigurationError(
            "a key is (ledger, entry, batch index), the last -1 for a message that is its entry, "
            f"got {key!r}"
        )
    if not (isinstance(due_ms, int) and isinstance(bits, int)):
        raise ConfigurationError(
            f"due_ms and bits must be whole numbers, got {due_ms!r} and {bits!r}"
        )
