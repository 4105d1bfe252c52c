"""The option `nack_index` of a consumer: `SpillingNackIndex`."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigurationError
from .checks import directory, integer


@dataclass(frozen=True, slots=True)
class SpillingNackIndex:
    """Keep the ids of nacked messages in memory and overflow to a directory (after PIP-195).

    For very many nacked messages, on brokers whose limits of unacked messages are off. Without this
    option all ids are in memory, at 0.2 to 13 bytes each.

    The directory is not durable state. A nacked message stays unacked at the broker, which delivers
    it to the next process at once, whatever its due time. `state=RocksState(...)` keeps due times
    over a restart; both options can be combined.

    Each consumer creates a sub-directory and removes it when it is closed. It also removes those of
    dead processes, so consumers and processes may share one directory. If a write fails, for
    example on a full disk, the ids stay in memory and the write is retried after a minute;
    `statistics().nack_index` has the error. Nothing is synced to the disk.

    Ids are counted for each topic or partition. Ack timeouts and the records of held messages stay
    in memory, and so do about a dozen bytes for each batch with waiting messages. Needs
    `fcntl.flock`, which Windows does not have.

    Args:
        path: Directory on a local disk, created if it is missing. It must not be the directory of
            `state` or below it.
        min_index_count_per_bucket: Number of ids of a topic in memory that are written as one
            snapshot (delayedDeliveryMinIndexCountPerBucket).
        max_indexes_per_bucket_snapshot_segment: Most ids of a snapshot that are read together; -1
            for no limit (delayedDeliveryMaxIndexesPerBucketSnapshotSegment).
        max_time_step_per_bucket_snapshot_segment_seconds: Ids that are read together have due times
            that differ by less than this
            (delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds).
        max_num_buckets: If a topic has more snapshots, they are merged; -1 for never
            (delayedDeliveryMaxNumBuckets).

    Raises:
        ConfigurationError: if an argument is out of range.

    Example:
        ```python
        consumer = await client.subscribe(
            "orders", "billing", pulsar_encore.ConsumerType.Shared,
            max_unacked_messages=10_000_000,
            nack_index=pulsar_encore.SpillingNackIndex("/var/lib/billing/nacks"),
        )
        ```
    """

    path: str | os.PathLike[str]
    min_index_count_per_bucket: int = 50_000
    max_indexes_per_bucket_snapshot_segment: int = 5000
    max_time_step_per_bucket_snapshot_segment_seconds: float = 300
    max_num_buckets: int = -1

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", directory(self.path, "SpillingNackIndex"))
        integer(self.min_index_count_per_bucket, "min_index_count_per_bucket", low=1)
        for name in ("max_indexes_per_bucket_snapshot_segment", "max_num_buckets"):
            if integer(getattr(self, name), name, low=-1) == 0:
                raise ConfigurationError(f"{name} must be -1, for no limit, or at least 1, got 0")
        name = "max_time_step_per_bucket_snapshot_segment_seconds"
        step: Any = self.max_time_step_per_bucket_snapshot_segment_seconds
        if isinstance(step, bool) or not isinstance(step, (int, float)):
            raise ConfigurationError(f"{name} must be a number of seconds, got {step!r}")
        if not 0.001 <= step < math.inf:
            raise ConfigurationError(f"{name} must be at least 0.001 and finite, got {step!r}")
