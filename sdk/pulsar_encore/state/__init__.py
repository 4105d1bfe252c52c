"""State that outlives a process: what waits for its redelivery, on disk.

`SpillingIndex` is for programs with something of their own to do later, by message id; consumers
take `pulsar_encore.RocksState`.
"""

from __future__ import annotations

from ..core.due_index import DueIndex
from ..core.due_time import DueBatch, MessageKey
from .blobs import BlobStore, DirectoryBlobs, MemoryBlobs
from .spilling.spilling_index import SpillingIndex
from .spilling.spilling_metrics import MetricSample, SpillingStatistics

__all__ = [
    "BlobStore",
    "DirectoryBlobs",
    "DueBatch",
    "DueIndex",
    "MemoryBlobs",
    "MessageKey",
    "MetricSample",
    "SpillingIndex",
    "SpillingStatistics",
]
