"""`SpillingIndex`: a due index of which most is on disk, after Pulsar's PIP-195.

Owns the `DueIndex` calls. What is added goes to a mutable head in memory, of which a journal can
keep a copy; a full head becomes an immutable snapshot, cut into segments by due time, of which the
one that is next is in memory. Invariants: a key is in a head or live in `Membership`, never both;
what `pop_due` took is on disk until `done`. Refuses to know what time it is: due times are of the
caller's clock, and a durable index wants one that goes on after a restart, the wall clock. Set
back, such a clock lets what waits wait longer by that much; nothing is lost and nothing is early.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from heapq import heapify, heappop, heapreplace
from types import TracebackType
from typing import Final

from ...core.due_time import DueBatch, MessageKey, bucket_edge
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
from .snapshot_store import SnapshotStore, StoreLimits
from .snapshots import Snapshots
from .spilling_metrics import MetricSample, SpillingMetrics, SpillingStatistics, samples
from .stepwise_work import Tasks

_MAX_READS: Final = 8  # segments that one call reads: 4 ms or so
_MAX_CALLS_PER_STEP: Final = 16  # calls between two steps of what else is to be done


class SpillingIndex:
    """A `DueIndex` that keeps in memory what is due soon, and a bit or so for each other key.

    A context manager, which closes it. A key is (ledger, entry, batch index), the last -1 for a
    message that is its entry; a due time is in ms, rounded up to a bucket of ``2**bits`` ms.

    One thread calls it. It goes on where an index before it on the same store was: `close` it, or
    let it crash. Without a journal, a crash loses what was added since the last `flush` or
    snapshot, and what was taken before it was in one (the broker has both still); and it forgets
    what was discarded or done since then, which comes due again.

    Args:
        blobs: Where it spills to; closed with the index.
        min_index_count_per_bucket: Ids in the head that make a snapshot (Pulsar:
            delayedDeliveryMinIndexCountPerBucket).
        max_time_step_per_bucket_snapshot_segment_seconds: A segment spans no more
            (delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds).
        max_indexes_per_bucket_snapshot_segment: Ids in a segment; -1: any number
            (delayedDeliveryMaxIndexesPerBucketSnapshotSegment).
        max_num_buckets: More snapshots than that are merged; -1: never
            (delayedDeliveryMaxNumBuckets).
        journal: Whether the head is written to a journal as it changes.
        fsync: When what is written is to survive a loss of power, as it always does the death of
            the process: ``"always"`` before the call returns; ``"interval"`` after
            `fsync_interval_s` at most, if there are calls; ``"none"`` when the system likes.
        fsync_interval_s: See `fsync`.
        max_journal_bytes: A longer journal is made unnecessary by a snapshot.
        retry_s: How long to wait after a write that failed before it is tried again.
        executor: What may take long runs there, such as a thread of its own; None: in small steps
            within the calls, as with one that was shut down. It stays the caller's.
        clock: Seconds, of any origin; for intervals.
        transient: The store is empty and ends with this index. No journal and no manifest are
            written, and nothing is synced. `close` writes nothing and does not wait for a step that
            runs in the executor; `blobs` are closed when that step has ended.
        on_work: Called when work in steps begins: call `maintain` again and again until it returns
            False. Without that, other calls do the work. Also, a `pop_due` with a limit below the
            number of ids may then hand over fewer than are due, even none, because it reads only a
            few segments in a call. `next_due` says that ids are still due.

    Raises:
        ConfigurationError: An argument is out of range.
        StateInUseError: The store is somebody else's, who is named.
        StateDamagedError: What is stored is not what was written.
        StateFormatError: It was written by another version, or by something else.
        StoreError: It could not be opened or read.
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
        limits = StoreLimits(
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
        self._snapshot_store = SnapshotStore(
            blobs,
            tasks=self._tasks,
            heads=self._heads,
            membership=self._membership,
            snapshots=self._snapshots,
            journal=self._journal,
            following=found.journal,
            metrics=metrics,
            limits=limits,
            clock=clock,
            start=found.start,
        )

    def __enter__(self) -> SpillingIndex:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # `DueIndex`

    def __len__(self) -> int:
        return len(self._heads) + len(self._membership)

    def __contains__(self, key: MessageKey) -> bool:
        return key in self._heads or key in self._membership

    def add(self, key: MessageKey, due_ms: int, bits: int) -> bool:
        """Track a key; True when it is new. One already tracked stays where it is.

        Raises:
            ConfigurationError: The key, `due_ms` or `bits` is out of range, or is none.
            ClosedError: The index is closed.
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
            self._heads.head.discard(key)  # judges the key; it is not there
            bucket_edge(due_ms, bits)
            return False
        if not self._heads.head.add(key, due_ms, bits):
            return False
        if len(self._heads.taken):
            self._heads.taken.discard(key)
        self._put(key, due_ms, bits)
        return True

    def move(self, key: MessageKey, due_ms: int, bits: int) -> bool:
        """Give a key another due time, tracking it when it was not; True when it was.

        Raises:
            ConfigurationError: The key, `due_ms` or `bits` is out of range, or is none.
            ClosedError: The index is closed.
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
        """Forget a key; True when it was tracked.

        Raises:
            ConfigurationError: The key is out of range, or is none.
            ClosedError: The index is closed.
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
        """Forget the entry's whole key and all its batch indexes; returns how many there were.

        Raises:
            ConfigurationError: `ledger` or `entry` is out of range.
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
        """Forget every key of this entry and of all before it; returns how many there were.

        Raises:
            ConfigurationError: `ledger` or `entry` is out of range.
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

    def next_due(self) -> int | None:
        """The earliest time at which `pop_due` hands anything over; None when nothing waits."""
        edge = self._heads.next_due()
        if not self._membership:
            return edge
        other = self._snapshots.next_due()
        if edge is None or other is None:
            return edge if other is None else other
        return min(edge, other)

    def pop_due(self, now_ms: int, limit: int | None = None) -> DueBatch:
        """Take what is due at `now_ms`, the earliest bucket first; on disk it is until `done`.

        A limit that ends within a bucket takes its lowest keys: by ledger, entry and batch index,
        wherever they are kept.

        A segment that cannot be read is tried again, at first after a second: what is in it comes
        later. One that is damaged is given up, and its ids, which are known from elsewhere, come
        due at the last time that one of them was.

        Args:
            now_ms: The time in milliseconds, on the clock of the due times.
            limit: At most so many keys; what is left stays due.

        Raises:
            ConfigurationError: `limit` is negative.
            ClosedError: The index is closed.
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
        """Take keys of the earliest edge; returns how many."""
        snapshots, heads = self._snapshots, self._heads
        parts: list[DueBatch] = []
        left = limit
        while left:
            # First: of a damaged segment it puts the keys into the head.
            # To read 200 segments takes 80 ms, as for 10 million ids of delays up to a week.
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

        The count ends where a snapshot has no more keys in its segment in front: there may be more
        keys of the same edge in the next one.
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
        """What was taken is seen to: it does not come again after a crash.

        This goes by keys. One that was added again and taken again is seen to with either batch.
        """
        self._check_open()
        membership, heads = self._membership, self._heads
        numbers = membership.taken_numbers(batch)
        keys = heads.mark_done(batch)
        if self._journal is not None and (numbers or keys):
            if len(numbers) + len(keys) < len(batch):  # the rest is in a head again
                batch = merge_batches([membership.slots.batch(numbers), _batch(keys)])
            self._journal.write(records.done(batch))
        if membership.shadowed:
            membership.unshadow(
                key for key in membership.select_shadowed(batch) if key not in heads
            )
        membership.mark_done(numbers)
        self._tick()

    def clear(self) -> None:
        """Forget everything. What is stored is removed in the steps that follow."""
        self._check_open()
        if not (len(self._snapshots) or self._heads or self._heads.taken or self._tasks):
            return
        if self._journal is not None:
            self._journal.write(records.clear())
        self._snapshot_store.forget()
        self._heads.clear()
        self._membership.clear()
        self._snapshots.clear()
        self._snapshot_store.checkpoint()

    def _check(self) -> None:
        """Walk every invariant and raise AssertionError on the first broken one; for tests."""
        self._heads._check()
        self._membership.check()
        self._snapshots.check()
        live = self._membership.live.to_array()
        assert not any(key in self._heads for key in self._membership.slots.batch(live))

    # The store

    def flush(self) -> None:
        """Return when all that was called would survive a loss of power; with ``fsync="none"``, the
        death of the process.

        With a journal that is to write and sync it, also what an index before this one had not
        synced. Without one, or where the journal fails, the head becomes a snapshot, however small.

        Raises:
            StoreError: Some of it could not be written or synced. It is in memory, and tried again.
        """
        self._check_open()
        if self._journal is not None:
            with suppress(StoreError):  # a snapshot may find room where the journal does not
                self._journal.flush()
                self._journal.sync()
            if not self._journal.waiting:
                return
        self._tasks.finish()
        snapshot_store, journal = self._snapshot_store, self._journal
        while (
            snapshot_store.sealing
            or len(self._heads)
            or snapshot_store.uncommitted
            or (journal is not None and journal.waiting)
        ):
            snapshot_store.seal()
            self._tasks.finish()
            if snapshot_store.error is not None:
                raise snapshot_store.error

    def close(self) -> None:
        """Flush, and give the store free; a long head is sealed, so that a start need not read it
        from the journal. Again is nothing.

        Raises:
            StoreError: As of `flush`. What could not be written is gone now: what was added may not
                be there at the next start, what was settled may come again. The store is free.
        """
        if self._closed:
            return
        try:
            if self._transient:
                return
            if self._journal is None:
                self._heads.reclaim()  # what was taken of snapshots is due again by itself
            self.flush()
            if len(self._heads) > self._min_sealed:
                self._tasks.finish()
                self._snapshot_store.seal()
                self._tasks.finish()
        finally:
            self._tasks.stop()
            self._closed = True
            if not self._transient:
                self._tasks.wait()
            self._tasks.when_ended(self._blobs.close)

    def maintain(self) -> bool:
        """Do a bounded bit of what is to be done in the store; True when there is more.

        Calls do it as well, some of them; this is for an owner who has a moment to spare, and for
        one that makes no calls for long.
        """
        self._check_open()
        self._tasks.step()
        self._snapshot_store.plan()
        if self._prefetches and "fetch" not in self._tasks:
            cursor = self._snapshots.to_fetch()
            if cursor is not None:
                self._tasks.start("fetch", self._snapshots.fetch(cursor))
        return bool(self._tasks)

    def statistics(self) -> SpillingStatistics:
        """What it has and what it did so far."""
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
            error=next((str(error) for error in self._snapshot_store.failed.values()), None),
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
    """What an application handed in that made no sense, by name."""
    if not (isinstance(key, tuple) and len(key) == 3 and all(isinstance(n, int) for n in key)):
        raise ConfigurationError(
            "a key is (ledger, entry, batch index), the last -1 for a message that is its entry, "
            f"got {key!r}"
        )
    if not (isinstance(due_ms, int) and isinstance(bits, int)):
        raise ConfigurationError(
            f"due_ms and bits must be whole numbers, got {due_ms!r} and {bits!r}"
        )
