"""What a spilling index tells of itself, under the names of Pulsar's own metrics where it has them.

Owns the counting. Refuses to know labels: which topic and subscription an index is of, its owner
knows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

LATENCY_BOUNDS_MS: Final = (50, 100, 500, 1000, 5000, 30_000, 60_000)
OPERATIONS: Final = ("create", "load", "delete", "merge")


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One kind of work on snapshots (`pulsar_delayed_message_index_bucket_op_*`).

    Attributes:
        succeed: How many times it was done.
        failed: How many times it was tried in vain; it is tried again.
        latency_ms: How many of those that succeeded took up to 50, 100, 500, 1000, 5000, 30,000
            and 60,000 ms, and longer; each in one place only.
        latency_sum_ms: Milliseconds of all of them.
    """

    succeed: int
    failed: int
    latency_ms: tuple[int, ...]
    latency_sum_ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class SpillingStatistics:
    """A spilling index at one moment.

    Attributes:
        bucket_total: Snapshots, and the mutable head
            (`pulsar_delayed_message_index_bucket_total`).
        loaded: Ids in memory: those of the head and of resident segments
            (`pulsar_delayed_message_index_loaded`).
        bucket_snapshot_size_bytes: Bytes of snapshots in the store
            (`pulsar_delayed_message_index_bucket_snapshot_size_bytes`).
        operations: By kind: create, load, delete, merge.
        journal_size_bytes: Bytes of journals that a start would read, and of what waits to be
            written to one.
        journal_failed: Writes to the journal that failed; what they were to say is kept, and
            written again.
        journal_torn_bytes: What a crash had left of unfinished records, at the last start.
        segments_rescued: Segments that could not be read, of which every id was kept.
    """

    bucket_total: int
    loaded: int
    bucket_snapshot_size_bytes: int
    operations: Mapping[str, Operation]
    journal_size_bytes: int
    journal_failed: int
    journal_torn_bytes: int
    segments_rescued: int


class Metrics:
    """Counts.

    Args:
        clock: Seconds, of any origin.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._succeed = dict.fromkeys(OPERATIONS, 0)
        self._failed = dict.fromkeys(OPERATIONS, 0)
        self._times = {each: [0] * (len(LATENCY_BOUNDS_MS) + 1) for each in OPERATIONS}
        self._sums = dict.fromkeys(OPERATIONS, 0.0)
        self.journal_failed = 0
        self.journal_torn_bytes = 0
        self.segments_rescued = 0

    @contextmanager
    def counted(self, operation: str) -> Iterator[None]:
        """Count what is done inside, and how long it takes."""
        start = self._clock()
        try:
            yield
        except Exception:
            self._failed[operation] += 1
            raise
        took_ms = (self._clock() - start) * 1000
        self._succeed[operation] += 1
        self._times[operation][bisect_left(LATENCY_BOUNDS_MS, took_ms)] += 1
        self._sums[operation] += took_ms

    def operations(self) -> dict[str, Operation]:
        """All that was counted."""
        return {
            each: Operation(
                succeed=self._succeed[each],
                failed=self._failed[each],
                latency_ms=tuple(self._times[each]),
                latency_sum_ms=self._sums[each],
            )
            for each in OPERATIONS
        }
