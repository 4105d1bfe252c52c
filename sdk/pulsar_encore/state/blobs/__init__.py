"""Where snapshots are kept: in memory, in a directory."""

from __future__ import annotations

from .base import BlobStore
from .directory import DirectoryBlobs
from .memory import MemoryBlobs

__all__ = ["BlobStore", "DirectoryBlobs", "MemoryBlobs"]
