"""Blobs on disk that end with their process, for a due index that overflows to disk.

Several processes may share a directory, in which each consumer has a `TransientDirectory` with a
lock. The system releases the lock when the process dies. The next process that makes a
sub-directory removes those whose lock is free.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final

from ...errors import NotSupportedError, StateInUseError, StoreError
from ..directory_advice import advised_to_make
from ..directory_lock import DirectoryLock
from .blob_store import BlobWriter
from .directory_blobs import DirectoryBlobs

_PREFIX: Final = "spilled-"
_OWNER: Final = "owner"
# A try fails only if another process removes the new directory before it is locked.
_MAX_TRIES: Final = 10


class TransientDirectory:
    def __init__(self, path: Path, lock: DirectoryLock) -> None:
        self.path: Path = path
        self._lock = lock

    @classmethod
    def make(cls, shared: Path) -> TransientDirectory:
        """Create a sub-directory, and remove those of dead processes. Blocks."""
        try:
            import fcntl  # noqa: F401
        except ImportError as error:
            raise NotSupportedError(
                "spilling to disk needs fcntl.flock, which this system does not have"
            ) from error
        try:
            shared.mkdir(parents=True, exist_ok=True)
            for each in shared.glob(_PREFIX + "*"):
                _remove_dead(each)
            for _ in range(_MAX_TRIES):
                path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=shared))
                lock = _lock_new(path)
                if lock is not None:
                    break
            else:
                raise StoreError(
                    f"could not make a directory in {shared}: other processes removed it "
                    f"{_MAX_TRIES} times; name a directory of its own for `nack_index`"
                )
        except OSError as error:
            raise StoreError(
                f"could not make a directory in {shared}: {advised_to_make(error)}"
            ) from error
        with suppress(OSError):  # informational only: a full disk must not stop a consumer
            os.write(lock.file, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        return cls(path, lock)

    def remove(self) -> None:
        """Remove the sub-directory and its files. Blocks.

        Files that cannot be removed are left to the next process. A forked child removes nothing:
        the directory belongs to its parent.
        """
        if self._lock.file < 0:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.release()


def _lock_new(path: Path) -> DirectoryLock | None:
    """Lock a new sub-directory. Return None if another process has removed it.

    Until it is locked, a new sub-directory looks like one whose owner has died.
    """
    try:
        lock = DirectoryLock(path / _OWNER)
    except StateInUseError:
        return None
    except StoreError:
        if path.exists():
            raise
        return None
    if not os.fstat(lock.file).st_nlink:  # another process removed it before it was locked
        lock.release()
        return None
    return lock


def _remove_dead(path: Path) -> None:
    try:
        lock = DirectoryLock(path / _OWNER)
    except StoreError:  # the owner is alive, or another user, or another process removed it
        return
    shutil.rmtree(path, ignore_errors=True)
    lock.release()


class TransientBlobs:
    """A `BlobStore` without journals and manifest. The first blob opens its directory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open_lock = Lock()
        self._store: DirectoryBlobs | None = None

    def open(self) -> None:
        """Do nothing: most indexes never spill."""

    def _open_store(self) -> DirectoryBlobs:
        with self._open_lock:
            if self._store is None:
                store = DirectoryBlobs(self._path)
                store.open()
                self._store = store
            return self._store

    def create(self, generation: int) -> BlobWriter:
        return self._open_store().create(generation)

    def meta(self, generation: int) -> bytes:
        return self._open_store().meta(generation)

    def segment(self, generation: int, number: int) -> bytes:
        return self._open_store().segment(generation, number)

    def size(self, generation: int) -> int:
        return self._open_store().size(generation)

    def delete(self, generation: int) -> None:
        if self._store is not None:
            self._store.delete(generation)

    def generations(self) -> list[int]:
        return []

    def journals(self) -> list[int]:
        return []

    def read_manifest(self) -> bytes | None:
        return None

    def write_manifest(self, data: bytes, *, sync: bool) -> None:
        """Do nothing: the store is never opened again."""

    def append(self, journal: int, data: bytes, *, sync: bool) -> None:
        raise StoreError("a transient store has no journals")

    def read_journal(self, journal: int) -> bytes:
        raise StoreError("a transient store has no journals")

    def delete_journal(self, journal: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Close the files. The owner of the directory removes them."""
        if self._store is not None:
            self._store.close()
