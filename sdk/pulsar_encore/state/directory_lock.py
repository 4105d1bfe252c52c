"""The exclusive lock of a state directory: `flock` on a small file of its own.

`flock` belongs to an open file and not to a process. A POSIX lock (`lockf`, and RocksDB's `LOCK`)
is dropped as soon as the owner opens and closes the locked file once, as when it copies its own
directory. `flock` also refuses a second opening in the same process, even through a symbolic link,
a bind mount or a hard link.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Final

from pulsar_encore.errors import StateInUseError, StoreError

from .directory_advice import advised

LOCK_FILE: Final = "owner.lock"
# How `flock`, or Windows, says that another descriptor holds the lock.
_HELD: Final = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK}
_NO_LOCKS: Final = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}
_locks: Final[set[DirectoryLock]] = set()


class DirectoryLock:
    """The lock of one directory. The system releases it when the process dies.

    Args:
        path: The lock file. It is created if it is missing, and never removed.

    Attributes:
        file: The descriptor of the lock file, -1 after `release` and in a forked child.
    """

    def __init__(self, path: Path) -> None:
        self.file: int = -1
        file = -1
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
            _lock(file)
        except OSError as error:
            if file >= 0:
                os.close(file)
                if error.errno in _HELD:
                    raise StateInUseError(f"{path.parent} is open already") from error
            advice = advised(error)
            if error.errno in _NO_LOCKS:
                advice += ": its file system has no file locks, name a directory on a local one"
            raise StoreError(f"{path.parent} cannot be opened: {advice}") from error
        self.file = file
        _locks.add(self)

    def release(self) -> None:
        file, self.file = self.file, -1
        _locks.discard(self)
        if file < 0:
            return
        try:
            _unlock(file)
        finally:
            os.close(file)


if sys.platform == "win32":
    import msvcrt

    def _lock(file: int) -> None:
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)

    def _unlock(file: int) -> None:
        os.lseek(file, 0, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(file: int) -> None:
        # Not left to `close`: a child that was forked without Python's hooks has the file open too.
        fcntl.flock(file, fcntl.LOCK_UN)


def _close_in_child() -> None:
    """A forked child shares the lock: it must neither keep it alive nor release it."""
    for lock in _locks:
        os.close(lock.file)
        lock.file = -1
    _locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
