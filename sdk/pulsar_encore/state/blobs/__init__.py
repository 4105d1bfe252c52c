"""Storage for the snapshots of a spilling index: in memory, or in a directory."""

from __future__ import annotations

from .blob_store import BlobStore
from .directory_blobs import DirectoryBlobs
from .memory_blobs import MemoryBlobs

__all__ = ["BlobStore", "DirectoryBlobs", "MemoryBlobs"]
