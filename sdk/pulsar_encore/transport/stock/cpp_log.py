"""The C++ library's log: reasons for errors, and records of the logger "pulsar_encore.engine".

The library hands most refusals over as a bare result code. The broker's words are only in its log,
so `EngineLog` offers the library a file in memory to log into, and reads that. The library has one
log for a process, that of its first client, for ever. Its own bridge to `logging` would cost a lock
and a formatted line for every message (`docs/notes/cpp-client.md#logging`).

The library writes with blocking calls while it holds its locks, so a pipe would stop its threads
behind a slow handler. A thread of this module reads the file and calls the handlers. Only Linux has
such files.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import mmap
import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import pulsar

from ...errors import ConfigurationError
from ...eventloop.process import at_end, forked
from .cpp_log_lines import LogLine, Refusals, lines

#: Its level when the first client is made decides, unless it lets less through than warnings.
ENGINE: Final = logging.getLogger("pulsar_encore.engine")
_PACKAGE: Final = logging.getLogger("pulsar_encore")

_PERIOD_S: Final = 0.5  # a line becomes a record at most so long after it was written
_CHUNK: Final = 1 << 18  # bytes read at once: a few ms of parsing at most
_FREED_AT: Final = 1 << 20  # bytes read before their memory is given back
_MAX_LINES: Final = 10_000  # not given to a handler yet; older ones are dropped
_DELIVERY_WAIT_S: Final = 0.05  # how long an error waits for its own log lines to be records
_POLL_S: Final = 0.001
_EXIT_WAIT_S: Final = 1.0  # how long the process's end waits for handlers


class EngineLog:
    """Reads the library's log: keeps the reasons of refusals, and delivers the lines."""

    def __init__(self) -> None:
        self._fd = -1  # of the file, by which this process reads; -1 without a file
        self._library_fd = -1  # by which the library writes
        self._candidate = -1, _identity(-1)  # a file that the library may have taken
        self._making = threading.Lock()  # one client at a time
        self._is_child = forked()
        self._begin(-1)

    def _begin(self, fd: int) -> None:
        """Read from the beginning of a file."""
        self._fd, self._file = fd, _identity(fd)
        self._lock = threading.Lock()  # of the next five; never held while a handler runs
        self._at = self._freed_to = 0  # bytes read, and those whose memory was given back
        self._partial_line = b""  # the beginning of a line
        self._lines: deque[LogLine] = deque(maxlen=_MAX_LINES)
        self._refusals = Refusals()
        self._delivered_to = 0  # handlers had what was read up to here
        self._wake = threading.Event()
        self._is_ending = self._silenced = False  # deliver the last lines; no more handlers at all
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def offered(self, user_logger: Any) -> Iterator[Any]:
        """The `logger=` with which a native client is to be made within.

        Args:
            user_logger: The user's, or None for this log (the console if there can be no file).

        Raises:
            ConfigurationError: The program closed the log's descriptor and uses it otherwise.
        """
        with self._making:
            if self._fd >= 0:
                if not self._file == _identity(self._fd) == _identity(self._library_fd):
                    self._renew()
                yield user_logger
            elif user_logger is not None:
                yield user_logger
            else:
                fd, file = self._candidate
                try:
                    if file is None or _identity(fd) != file:
                        fd = _new_file()
                        self._candidate = fd, _identity(fd)
                except OSError:
                    yield pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn)
                    return
                yield pulsar.FileLogger(_level(), f"/proc/self/fd/{fd}")
                self._candidate = -1, None
                self._library_fd = _duplicate_of(fd)
                if self._library_fd < 0:  # an earlier client of this process had another logger
                    os.close(fd)
                else:
                    os.set_inheritable(self._library_fd, False)
                    self._begin(fd)
            if self._fd >= 0 and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(
                    target=self._run, name="pulsar-encore-log", daemon=True
                )
                self._thread.start()

    def _renew(self) -> None:
        """Have the library write into a new file: a fork shares this one, or it was closed.

        Raises:
            ConfigurationError: The program uses the library's descriptor for something else.
        """
        import fcntl  # not on Windows, which has no such files

        old, fd, new = self._fd, self._library_fd, _new_file()
        if _identity(fd) == self._file:
            os.dup2(new, fd, inheritable=False)
        else:
            # Closed. Unlike dup2 this never takes a number that is in use again.
            got = new if new == fd else fcntl.fcntl(new, fcntl.F_DUPFD_CLOEXEC, fd)
            if got != fd:
                os.close(got)
                os.close(new)
                raise ConfigurationError(
                    f"descriptor {fd}, into which the engine logs since the first client of this "
                    "process, was closed and is something else now: make the first client after "
                    "descriptors are closed (in the daemon), or keep that one open"
                )
            new = os.dup(fd) if new == fd else new
        if _identity(old) == self._file:
            os.close(old)
        self._begin(new)

    def _run(self) -> None:
        ending, wake = False, self._wake
        while not ending and wake is self._wake:
            wake.wait(_PERIOD_S)
            wake.clear()
            # A child that was forked from a thread ends with the last of its threads, and without
            # the interpreter's exit: this one must not be the last.
            ending = self._is_ending or (self._is_child and not threading.main_thread().is_alive())
            self._deliver()

    def _deliver(self) -> None:
        """Call the handlers with all lines, on one thread, so that records keep their order."""
        self._read()
        while self._lines and not self._silenced:
            _emit(self._lines.popleft())
            self._read()  # handlers may be slower than the library, and memory is bounded
        self._delivered_to = self._at

    def _read(self) -> bool:
        """Read to the end of the log; False if there is no file, or the program closed it."""
        with self._lock, contextlib.suppress(OSError):
            while self._file is not None and _identity(self._fd) == self._file:
                at = self._at - len(self._partial_line)
                data = os.pread(self._fd, _CHUNK, self._at)
                if not data:
                    return True
                self._at += len(data)
                whole, newline, self._partial_line = (self._partial_line + data).rpartition(b"\n")
                for line in lines(whole + newline, at):
                    self._refusals.add(line)
                    self._lines.append(line)
                if self._at - self._freed_to >= _FREED_AT:
                    self._freed_to = _free_memory(self._fd, self._freed_to, self._at)
        return False

    async def delivered(self) -> None:
        """Wait, not long, until the lines that were logged so far are records."""
        end, deadline = self.position(), time.monotonic() + _DELIVERY_WAIT_S
        self._wake.set()
        while self._delivered_to < end and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)

    def position(self) -> int:
        """Where the log ends now: a call that begins now is logged behind it."""
        with contextlib.suppress(OSError):
            return 0 if self._file is None else os.fstat(self._fd).st_size
        return 0

    def reason(self, result: str, since: int) -> str:
        """The broker's words for `result`, or "". Callable on any thread.

        The library logs before it calls back, so in a call's callback its line is there.

        Args:
            result: The name of the result code.
            since: The `position` when the call began.
        """
        if not self._read():
            return ""
        with self._lock:
            return self._refusals.take(result, since)

    def told(self, result: str, reason: str) -> None:
        """Forget a logged reason: the library gave that to its call itself."""
        if self._read():
            with self._lock:
                self._refusals.forget(result, reason)

    def end(self) -> None:
        """Deliver the last lines, and no more."""
        if self._thread is not None:
            self._is_ending = True
            self._wake.set()
            self._thread.join(_EXIT_WAIT_S)
            self._silenced = True  # `logging` waits for the lock of a slow handler when it ends

    def forked(self) -> None:
        """Give a forked child a file of its own, at once: it shares the parent's."""
        self._is_child, self._making, self._candidate = True, threading.Lock(), (-1, None)
        if self._fd >= 0:
            try:
                self._renew()
            except (OSError, ConfigurationError):
                self._begin(-1)


def _level() -> Any:
    """What the library is to write: warnings at least, for the reasons in them.

    The root logger's level does not count: a program that sets it to DEBUG means its own lines.
    """
    level = ENGINE.level or _PACKAGE.level or logging.WARNING
    if level <= logging.DEBUG:
        return pulsar.LoggerLevel.Debug
    return pulsar.LoggerLevel.Info if level <= logging.INFO else pulsar.LoggerLevel.Warn


def _emit(line: LogLine) -> None:
    try:
        if ENGINE.isEnabledFor(line.level):
            name, (_, text, level, source, number) = ENGINE.name, line
            ENGINE.handle(ENGINE.makeRecord(name, level, source, number, text, (), None))
    except BaseException:  # a handler or a filter that raises must not stop the next line
        if logging.raiseExceptions:
            with contextlib.suppress(Exception):
                traceback.print_exc()


def _new_file() -> int:
    """Make a file in memory that appends, and return its descriptor."""
    if not hasattr(os, "memfd_create"):
        raise OSError("no files in memory on this system")
    made = os.memfd_create("pulsar-encore-log", os.MFD_CLOEXEC)
    try:
        return os.open(f"/proc/self/fd/{made}", os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    finally:
        os.close(made)


def _identity(fd: int) -> tuple[int, int] | None:
    """Which file a descriptor is: a program may have closed it, and opened something else."""
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _duplicate_of(fd: int) -> int:
    """Return another descriptor of this process for the same file, or -1."""
    numbers = (int(name) for name in os.listdir("/proc/self/fd"))
    same = (each for each in numbers if each != fd and _identity(each) == _identity(fd))
    return next(same, -1)


def _free_memory(fd: int, start: int, end: int) -> int:
    """Free the memory of bytes that were read, in whole pages; return where it ends."""
    end -= end % mmap.ALLOCATIONGRANULARITY
    with contextlib.suppress(OSError), mmap.mmap(fd, end - start, offset=start) as pages:
        pages.madvise(mmap.MADV_REMOVE)  # the file keeps its size
    return end


#: Of this process.
engine_log: Final = EngineLog()
# `at_exit` registers after this, so the engine ends before its log does; `logging` ends last.
at_end(engine_log.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=engine_log.forked)
