"""A file in memory that the C++ library logs into, and that this process reads behind it.

Owns `LogFile`. The library writes with plain blocking calls while it holds its locks, so what it
writes into must never be full: a pipe would stop its network threads behind a slow handler, and
for ever where a thread waits for them with the interpreter lock held. Memory that has been read is
given back. Linux only: elsewhere making one is an `OSError`.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from typing import Final

_FREED_AT: Final = 1 << 20  # bytes read before their memory is given back
_PAGE: Final = mmap.ALLOCATIONGRANULARITY


class LogFile:
    """One such file.

    Raises:
        OSError: The system has none, or no /proc to open it by.
    """

    def __init__(self) -> None:
        if not hasattr(os, "memfd_create"):
            raise OSError("no files in memory on this system")
        made = os.memfd_create("pulsar-encore-log", os.MFD_CLOEXEC)
        try:  # again by its path, as the library will: it appends, whatever is read
            self.fd: int = os.open(f"/proc/self/fd/{made}", os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        finally:
            os.close(made)
        self.path: str = f"/proc/self/fd/{self.fd}"
        self.read: int = 0  # bytes taken so far
        self._freed = 0
        self._id = _identity(self.fd)

    def close(self) -> None:
        """Let go of it; what the library holds stays open."""
        if self.is_at(self.fd):
            os.close(self.fd)

    def is_at(self, fd: int) -> bool:
        """Whether `fd` is this file: a program may have closed it, and opened something else."""
        return _identity(fd) == self._id

    def other(self) -> int | None:
        """The descriptor by which somebody else in this process has it open."""
        for name in os.listdir("/proc/self/fd"):
            if int(name) != self.fd and self.is_at(int(name)):
                return int(name)
        return None

    def size(self) -> int:
        """Bytes written so far.

        Raises:
            OSError: Something closed it.
        """
        status = os.fstat(self.fd)
        if (status.st_dev, status.st_ino) != self._id:
            raise OSError(f"descriptor {self.fd} is another file now")
        return status.st_size

    def take(self, most: int) -> bytes:
        """The next bytes, at most so many; their memory is given back in time.

        Raises:
            OSError: Something closed it.
        """
        data = os.pread(self.fd, min(most, self.size() - self.read), self.read)
        self.read += len(data)
        if self.read - self._freed >= _FREED_AT:
            end = self.read // _PAGE * _PAGE
            with (
                contextlib.suppress(OSError),  # refused: the memory stays taken
                mmap.mmap(self.fd, end - self._freed, offset=self._freed) as taken,
            ):
                taken.madvise(mmap.MADV_REMOVE)  # the file keeps its size: nobody can notice
            self._freed = end
        return data

    def put_at(self, fd: int) -> bool:
        """Make `fd`, which is closed, this file; False when somebody took the number meanwhile."""
        import fcntl  # not on Windows, where nothing comes this far

        if self.fd == fd:
            self.fd = os.dup(fd)
            return True
        got = fcntl.fcntl(self.fd, fcntl.F_DUPFD_CLOEXEC, fd)
        if got != fd:
            os.close(got)
        return got == fd


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino
