"""Durable state on disk for messages that wait for their redelivery.

Consumers use `pulsar_encore.RocksState`. `SpillingIndex` is for programs that schedule their own
work by message id.
"""

from __future__ import annotations

from ..core.due_index import DueIndex
from ..core.message_key import DueBatch, MessageKey
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
