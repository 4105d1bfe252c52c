"""Counts of a spilling index. The broker's: `docs/notes/delayed-delivery.md#metrics-of-pip-195`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

LATENCY_BOUNDS_MS: Final = (50, 100, 500, 1000, 5000, 30_000, 60_000)
_PREFIX: Final = "pulsar_delayed_message_index_"
_BUCKETS: Final = "Buckets of the index: immutable snapshots, and the mutable bucket in memory."
_LOADED: Final = "Message ids of the index that are in memory."
_SIZE: Final = "Bytes of bucket snapshots in the store."
_OPERATIONS: Final = "Operations on bucket snapshots."
_LATENCY: Final = (
    "Operations by latency: over the threshold before `quantile`, up to `quantile` ms."
)
_TIMED: Final = "Operations whose latency was measured."
_SUM: Final = "Milliseconds that the measured operations took."
OPERATIONS: Final = ("create", "load", "delete", "merge")


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """Counts of one kind of work on snapshots (`pulsar_delayed_message_index_bucket_op_*`).

    Attributes:
        succeed: How many times it succeeded.
        failed: How many times it failed; it is retried.
        latency_ms: How many successes took up to 50, 100, 500, 1000, 5000, 30,000 and 60,000 ms,
            and longer. Each is counted once.
        latency_sum_ms: Total time of all successes.
    """

    succeed: int
    failed: int
    latency_ms: tuple[int, ...]
    latency_sum_ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricSample:
    """One value of one metric, for a monitoring system.

    Attributes:
        name: Name of the metric.
        labels: Label names and values.
        value: The value at the time of the call.
        kind: "gauge" for a value that rises and falls, "counter" for one that only rises.
        help: A sentence that explains the metric.
    """

    name: str
    labels: Mapping[str, str]
    value: float
    kind: Literal["gauge", "counter"]
    help: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SpillingStatistics:
    """Counts of a spilling index.

    Attributes:
        bucket_total: Snapshots and the head (`pulsar_delayed_message_index_bucket_total`).
        loaded: Keys in memory: in the head and in resident segments
            (`pulsar_delayed_message_index_loaded`).
        bucket_snapshot_size_bytes: Bytes of snapshots in the store
            (`pulsar_delayed_message_index_bucket_snapshot_size_bytes`).
        operations: Counts by kind: create, load, delete, merge.
        journal_size_bytes: Bytes of journals that a start would read, and of the backlog.
        journal_failed: Failed writes to the journal. Their data is kept and written again.
        journal_torn_bytes: Bytes of records that a crash had cut short, at the last start.
        segments_rescued: Corrupted segments. All of their keys were kept.
        error: Why keys are in memory that should be in the store, such as a full disk; None if the
            last write of each kind succeeded.
    """

    bucket_total: int
    loaded: int
    bucket_snapshot_size_bytes: int
    operations: Mapping[str, Operation]
    journal_size_bytes: int
    journal_failed: int
    journal_torn_bytes: int
    segments_rescued: int
    error: str | None = None


def samples(statistics: SpillingStatistics, labels: Mapping[str, str]) -> list[MetricSample]:
    """Return the five metrics of PIP-195 with the names and labels of Pulsar's broker.

    The broker's `BucketDelayedMessageIndexStats` counts the latencies of each interval, not
    cumulatively, and names the intervals in the label `quantile`: "50" is (0 ms, 50 ms], "100" is
    (50 ms, 100 ms], and so on; "overflow" is over 60,000 ms. They are counters here, because
    Prometheus' histograms are cumulative. The broker omits an interval without a count.
    """

    def sample(
        name: str, kind: Literal["gauge", "counter"], about: str, value: float, **more: str
    ) -> MetricSample:
        return MetricSample(
            name=_PREFIX + name, labels={**labels, **more}, value=value, kind=kind, help=about
        )

    found = [
        sample("bucket_total", "gauge", _BUCKETS, statistics.bucket_total),
        sample("loaded", "gauge", _LOADED, statistics.loaded),
        sample("bucket_snapshot_size_bytes", "gauge", _SIZE, statistics.bucket_snapshot_size_bytes),
    ]
    for each, done in statistics.operations.items():
        states = {
            "succeed": done.succeed,
            "failed": done.failed,
            "all": done.succeed + done.failed,
        }
        found += [
            sample("bucket_op_count", "counter", _OPERATIONS, count, state=state, type=each)
            for state, count in states.items()
        ]
    name = "bucket_op_latency_ms"
    for each, done in statistics.operations.items():
        bounds = [*map(str, LATENCY_BOUNDS_MS), "overflow"]
        for bound, count in zip(bounds, done.latency_ms, strict=True):
            found.append(sample(name, "counter", _LATENCY, count, type=each, quantile=bound))
        found.append(sample(f"{name}_count", "counter", _TIMED, done.succeed, type=each))
        found.append(sample(f"{name}_sum", "counter", _SUM, done.latency_sum_ms, type=each))
    return found


class SpillingMetrics:
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
        return {
            each: Operation(
                succeed=self._succeed[each],
                failed=self._failed[each],
                latency_ms=tuple(self._times[each]),
                latency_sum_ms=self._sums[each],
            )
            for each in OPERATIONS
        }
