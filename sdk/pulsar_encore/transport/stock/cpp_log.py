"""Read the C++ client's log: reasons for errors, and records for `logging`.

The broker's text of most refusals is only in the C++ client's log. `EngineLog` gives it a file in
memory (Linux only) as its log, and reads that file. The records go to the logger of the process's
first client, or to "pulsar_encore.engine".

The C++ client's own bridge to `logging` costs too much, and a thread that logs while the
interpreter ends would abort the process (`docs/notes/cpp-client.md#logging`). With a pipe, a slow
handler would stop the C++ client's threads, which write under locks.
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
from ...eventloop.process import at_exit, forked
from .cpp_log_lines import LogLine, Refusals, lines

#: Its level at the creation of the first client decides how much is logged, at least warnings,
#: unless that client has a logger.
ENGINE: Final = logging.getLogger("pulsar_encore.engine")
_PACKAGE: Final = logging.getLogger("pulsar_encore")

_PERIOD_S: Final = 0.5  # longest time from a log line to its record
_CHUNK: Final = 1 << 18
_FREED_AT: Final = 1 << 20
_MAX_LINES: Final = 10_000  # lines that wait for a handler; older ones are dropped
_DELIVERY_WAIT_S: Final = 0.05  # longest time that an error waits for its log lines
_POLL_S: Final = 0.001
_EXIT_WAIT_S: Final = 1.0  # longest time that the end of the process waits for handlers


class EngineLog:
    """The C++ client's log: the reasons of refusals, and records for `logging`."""

    def __init__(self) -> None:
        self._library_fd = -1  # -1 if the C++ client logs elsewhere, or there is no client yet
        self._making = threading.Lock()
        self._is_child = forked()
        self._logger = ENGINE
        self._begin(-1)

    def _begin(self, fd: int) -> None:
        self._fd, self._file = fd, _identity(fd)  # of the file for reading; -1 and None without one
        self._lock = threading.Lock()  # guards the next five attributes; no handler runs under it
        self._at = self._freed_to = 0
        self._partial_line = b""  # an incomplete last line
        self._lines: deque[LogLine] = deque(maxlen=_MAX_LINES)
        self._refusals = Refusals()
        self._delivered_to = 0  # bytes that handlers have received
        self._wake = threading.Event()
        self._is_ending = self._silenced = False  # deliver the last lines; call no handler any more
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def logger_for_client(self, user_logger: Any) -> Iterator[Any]:
        """Yield the `logger=` for a native client that is created in the `with` block.

        Args:
            user_logger: A `logging.Logger` or None for this log; else the native client's own.
        """
        with self._making:
            if self._library_fd >= 0:
                if not self._file == _identity(self._fd) == _identity(self._library_fd):
                    self._renew()
                yield user_logger
            elif not (user_logger is None or isinstance(user_logger, logging.Logger)):
                yield user_logger
            else:
                try:
                    if not self._is_open():
                        self._begin(_new_file())
                except OSError:
                    yield user_logger or pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn)
                    return
                self._logger = user_logger or ENGINE
                # If the client cannot be created, the next one gets the same file.
                level = _native_level(user_logger.getEffectiveLevel() if user_logger else _level())
                yield pulsar.FileLogger(level, f"/proc/self/fd/{self._fd}")
                self._library_fd = _duplicate_of(self._fd)
                if self._library_fd < 0:  # an earlier client of this process set another logger
                    os.close(self._fd)
                    self._begin(-1)
                else:
                    os.set_inheritable(self._library_fd, False)
            if self._library_fd >= 0 and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(
                    target=self._run, name="pulsar-encore-log", daemon=True
                )
                self._thread.start()

    def _renew(self) -> None:
        """Move the C++ client's log to a new file, after a fork or a close of the old one."""
        import fcntl  # missing on Windows, which never gets here

        old, fd, new = self._fd, self._library_fd, _new_file()
        if _identity(fd) == self._file:
            os.dup2(new, fd, inheritable=False)
        else:
            # The descriptor was closed. Unlike dup2, F_DUPFD never takes a number in use.
            other = fcntl.fcntl(new, fcntl.F_DUPFD_CLOEXEC, fd)
            if new == fd:  # the number was the lowest free one
                new, other = other, new
            if other != fd:
                os.close(other)
                os.close(new)
                raise ConfigurationError(
                    f"descriptor {fd}, into which the engine logs since the first client of this "
                    "process, was closed and is something else now: make the first client after "
                    "descriptors are closed (in the daemon), or keep that one open"
                )
        if _identity(old) == self._file:
            os.close(old)
        self._begin(new)

    def _run(self) -> None:
        ending, wake = False, self._wake
        while not ending and wake is self._wake:
            wake.wait(_PERIOD_S)
            wake.clear()
            # A child forked from a thread ends with its last thread.
            ending = self._is_ending or (self._is_child and not threading.main_thread().is_alive())
            self._deliver()

    def _deliver(self) -> None:
        self._read()
        while self._lines and not self._silenced:
            _emit(self._lines.popleft(), self._logger)
            self._read()  # handlers may be slower than the C++ client, and `_lines` is bounded
        self._delivered_to = self._at

    def _read(self) -> bool:
        """Read to the end of the log. False without a readable file."""
        with self._lock, contextlib.suppress(OSError):
            while self._is_open():
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

    def _is_open(self) -> bool:
        return self._file is not None and _identity(self._fd) == self._file

    async def wait_until_delivered(self) -> None:
        """Wait at most `_DELIVERY_WAIT_S` until the lines logged so far are records."""
        end, deadline = self.position(), time.monotonic() + _DELIVERY_WAIT_S
        self._wake.set()
        while self._delivered_to < end and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)

    def position(self) -> int:
        """Return the end of the log."""
        try:
            return os.fstat(self._fd).st_size
        except OSError:
            return 0

    def reason(self, result: str, since: int) -> str:
        """Return the broker's text for `result` since a `position`, or "". For any thread.

        The C++ client logs before it calls back, so a call's callback finds the line.
        """
        if not self._read():
            return ""
        with self._lock:
            return self._refusals.take(result, since)

    def forget_reason(self, result: str, reason: str) -> None:
        """Forget a reason that the C++ client also returned with the call."""
        if self._read():
            with self._lock:
                self._refusals.forget(result, reason)

    def end(self) -> None:
        if self._thread is not None:
            self._is_ending = True
            self._wake.set()
            self._thread.join(_EXIT_WAIT_S)
            self._silenced = True  # at its own end `logging` waits for the lock of a slow handler

    def forked(self) -> None:
        """Give a forked child a file of its own."""
        self._is_child, self._making = True, threading.Lock()
        try:
            if self._library_fd < 0:  # the parent may still use the file
                self._begin(-1)
            else:
                self._renew()
        except (OSError, ConfigurationError):
            self._library_fd = -1
            self._begin(-1)


def _level() -> int:
    """Return the level of this package's loggers. The root's is for the program's own lines."""
    return ENGINE.level or _PACKAGE.level or logging.WARNING


def _native_level(level: int) -> Any:
    """Return the C++ client's log level: at least warnings, which hold the reasons."""
    if level <= logging.DEBUG:
        return pulsar.LoggerLevel.Debug
    return pulsar.LoggerLevel.Info if level <= logging.INFO else pulsar.LoggerLevel.Warn


def _emit(line: LogLine, logger: logging.Logger) -> None:
    try:
        if logger.isEnabledFor(line.level):
            logger.handle(
                logger.makeRecord(
                    logger.name, line.level, line.source, line.number, line.text, (), None
                )
            )
    except BaseException:  # a logger, handler or filter that raises must not stop the next line
        if logging.raiseExceptions:
            with contextlib.suppress(Exception):
                traceback.print_exc()


def _new_file() -> int:
    if not hasattr(os, "memfd_create"):
        raise OSError("no files in memory on this system")
    made = os.memfd_create("pulsar-encore-log", os.MFD_CLOEXEC)
    try:
        return os.open(f"/proc/self/fd/{made}", os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    finally:
        os.close(made)


def _identity(fd: int) -> tuple[int, int] | None:
    """Return the identity of a descriptor's file, to detect a reused number."""
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
    """Free whole pages of read bytes, and return their end."""
    end -= end % mmap.ALLOCATIONGRANULARITY
    with contextlib.suppress(OSError), mmap.mmap(fd, end - start, offset=start) as pages:
        pages.madvise(mmap.MADV_REMOVE)  # the file keeps its size
    return end


engine_log: Final = EngineLog()
# `at_exit` registers later, so clients are closed before this log ends, and `logging` last.
at_exit(engine_log.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=engine_log.forked)
