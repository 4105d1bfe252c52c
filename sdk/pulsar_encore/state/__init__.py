"""State that outlives a process: what waits for its redelivery, on disk."""

from __future__ import annotations

from .blobs import BlobStore, DirectoryBlobs, MemoryBlobs
from .spilling.index import SpillingIndex
from .spilling.metrics import SpillingStatistics

__all__ = ["BlobStore", "DirectoryBlobs", "MemoryBlobs", "SpillingIndex", "SpillingStatistics"]
