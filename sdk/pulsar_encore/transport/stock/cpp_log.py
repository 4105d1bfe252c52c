"""The C++ library's log as records of Python's `logging`, under "pulsar_encore.engine".

Owns `EngineLog` and the one of this process. The library has one log for a process, of its first
client, for ever; handing it a `logging.Logger` costs a lock and a formatted line for every message
(`docs/notes/cpp-client.md#logging`). So it writes into a `LogFile`, and a thread of this module
reads that and calls the handlers: no native thread ever waits for Python. A forked child gets a
file of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from typing import Any, Final

import pulsar

from ...errors import ConfigurationError
from ...eventloop.process import at_end, forked
from .cpp_log_file import LogFile
from .cpp_log_lines import LogLine, Refusals, lines

#: Its level when the first client is made decides, unless it lets less through than warnings.
ENGINE: Final = logging.getLogger("pulsar_encore.engine")
_PACKAGE: Final = logging.getLogger("pulsar_encore")

_PERIOD_S: Final = 0.5  # a line is a record at most so long after it was written
_CHUNK: Final = 1 << 18  # bytes read at once: a few ms of parsing at most
_MOST_BEHIND: Final = 8 << 20  # bytes not read yet; what is older is dropped and counted
_MOST_LINES: Final = 10_000  # read, but not given to a handler yet
_DELIVERY_WAIT_S: Final = 0.05  # how long an error waits for its own log lines to be records
_EXIT_WAIT_S: Final = 1.0  # how long the process's end waits for handlers


class EngineLog:
    """Offers itself to the library as its log, and delivers what comes."""

    def __init__(self) -> None:
        self._file: LogFile | None = None  # the library writes into it
        self._library_fd = -1  # by this descriptor
        self._offered: LogFile | None = None  # the library may have taken it
        self._making = threading.Lock()  # one client at a time
        self._child = forked()
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()  # what was read; never held while a handler runs
        self._rest = b""  # of a record that is not whole yet
        self._lines: deque[LogLine] = deque()
        self._dropped = 0
        self._refusals = Refusals()
        self._waiting: deque[Callable[[], object]] = deque()
        self._wake = threading.Event()
        self._ending = False  # one more look, the last
        self._over = False  # no more handlers, whatever is left
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def offered(self, given: Any) -> Iterator[Any]:
        """The `logger=` with which a native client is to be made within.

        Args:
            given: The user's, or None for this one (the console, where this cannot work).

        Raises:
            ConfigurationError: The program closed the log's descriptor and uses it otherwise.
        """
        with self._making:
            if self._file is not None:
                self._mend(self._file)
                yield given
            elif given is not None:
                yield given
            else:
                file = self._offered
                try:
                    if file is None or not file.is_at(file.fd):
                        file = self._offered = LogFile()
                except OSError:
                    yield pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn)
                    return
                yield pulsar.FileLogger(_level(), file.path)
                self._offered = None
                self._adopt(file)
            if self._file is not None:
                self._start()

    def _adopt(self, file: LogFile) -> None:
        library_fd = file.other()
        if library_fd is None:  # an earlier client of this process had another logger
            file.close()
            return
        os.set_inheritable(library_fd, False)
        self._file, self._library_fd = file, library_fd

    def _mend(self, file: LogFile) -> None:
        """Have a file again after the program closed descriptors that it did not open."""
        fd = self._library_fd
        if file.is_at(file.fd) and file.is_at(fd):
            return
        new = LogFile()
        if file.is_at(fd):
            os.dup2(new.fd, fd, inheritable=False)
        elif not new.put_at(fd):
            new.close()
            raise ConfigurationError(
                f"descriptor {fd}, into which the engine logs since the first client of this "
                "process, was closed and is something else now: make the first client after "
                "descriptors are closed (in the daemon), or keep that one open"
            )
        file.close()
        with self._lock:
            self._file, self._rest = new, b""

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="pulsar-encore-log", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        open_, ending = True, False
        while open_ and not ending:
            self._wake.wait(_PERIOD_S)
            self._wake.clear()
            # A child that was forked from a thread ends with the last of its threads, and without
            # the interpreter's exit: this one must not be it.
            ending = self._ending or (self._child and not threading.main_thread().is_alive())
            waiting = [self._waiting.popleft() for _ in range(len(self._waiting))]
            open_ = self._read()
            for seen in waiting:
                with contextlib.suppress(RuntimeError):  # its loop is closed
                    seen()

    def _read(self) -> bool:
        """Deliver all there is; False when the program has closed the file."""
        caught_up = False
        while not caught_up and not self._over:
            try:
                self._skip()
                caught_up = self._collect()
            except OSError:
                self._deliver()
                return False
            self._deliver()
        return True

    def _collect(self) -> bool:
        """Read on; whether that was all."""
        with self._lock:
            file = self._file
            assert file is not None
            end = file.size()
            at = file.read - len(self._rest)
            whole, newline, self._rest = (self._rest + file.take(_CHUNK)).rpartition(b"\n")
            for line in lines(whole + newline, at):
                self._refusals.add(line)
                self._keep(line)
            return file.read >= end

    def _keep(self, line: LogLine) -> None:
        if len(self._lines) >= _MOST_LINES:
            self._lines.popleft()
            self._dropped += 1
        self._lines.append(line)

    def _skip(self) -> None:
        """Drop what is too far behind: handlers that are slower than the engine."""
        with self._lock:
            file = self._file
            assert file is not None
            while file.size() - file.read > _MOST_BEHIND:
                data = file.take(_CHUNK)
                self._dropped += data.count(b"\n")
                self._rest = data.rpartition(b"\n")[2]

    def _deliver(self) -> None:
        """Call the handlers. On this module's thread only, so that records keep their order."""
        while not self._over:
            with self._lock:
                dropped, self._dropped = self._dropped, 0
                line = self._lines.popleft() if self._lines else None
            if dropped:
                _emit(
                    LogLine(0, f"{dropped} lines were dropped: handlers are slower than the engine")
                )
            if line is None:
                return
            _emit(line)

    async def delivered(self) -> None:
        """Wait, not long, until what was logged so far is records."""
        if self._thread is None or not self._thread.is_alive():
            return
        seen = asyncio.Event()
        self._waiting.append(partial(asyncio.get_running_loop().call_soon_threadsafe, seen.set))
        self._wake.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DELIVERY_WAIT_S):
                await seen.wait()

    def position(self) -> int:
        """Where the log ends now: what a call that begins causes is behind it."""
        file = self._file
        with contextlib.suppress(OSError):
            return 0 if file is None else file.size()
        return 0

    def reason(self, result: str, since: int) -> str:
        """The broker's words for `result`, or nothing; of a call that began at position `since`.

        On any thread. In the call's callback its line is there already: the library logs first.
        """
        with contextlib.suppress(OSError):
            if self._file is not None and self._collect():
                with self._lock:
                    return self._refusals.take(result, since)
        return ""

    def told(self, result: str, reason: str) -> None:
        """The library handed a call its reason: what it logged of that is no other call's."""
        with contextlib.suppress(OSError):
            if self._file is not None and self._collect():
                with self._lock:
                    self._refusals.forget(result, reason)

    def end(self) -> None:
        """Deliver the last lines, and no more."""
        thread = self._thread
        if thread is not None:
            self._ending = True
            self._wake.set()
            if thread.is_alive():
                thread.join(_EXIT_WAIT_S)
            elif self._file is not None:
                self._read()
            self._over = True  # `logging` takes the slow handler's lock to end: leave it that

    def forked(self) -> None:
        """In a forked child, at once: the file, like its reader, is the parent's."""
        self._child = True
        self._making = threading.Lock()
        self._reset()
        old, self._offered = self._offered, None
        if old is not None:
            old.close()
        old = self._file
        if old is None or not old.is_at(self._library_fd):
            return
        self._file = None
        with contextlib.suppress(OSError):
            new = LogFile()
            os.dup2(new.fd, self._library_fd, inheritable=False)
            old.close()
            self._file = new


def _level() -> Any:
    """What the library is to write: warnings at least, for the reasons in them.

    The root logger's level does not count: a program that sets it to DEBUG means its own lines.
    """
    asked = ENGINE.level or _PACKAGE.level or logging.WARNING
    if asked <= logging.DEBUG:
        return pulsar.LoggerLevel.Debug
    return pulsar.LoggerLevel.Info if asked <= logging.INFO else pulsar.LoggerLevel.Warn


def _emit(line: LogLine) -> None:
    try:
        if not ENGINE.isEnabledFor(line.level):
            return
        record = ENGINE.makeRecord(
            ENGINE.name, line.level, line.source, line.number, line.text, (), None
        )
        if line.time:
            created = _instant(line.time, record.created)
            record.relativeCreated += (created - record.created) * 1000
            record.created, record.msecs = created, float(line.time[-3:])
            record.thread, record.threadName = line.thread, "engine"
        ENGINE.handle(record)
    except BaseException:  # a handler that raises, or a filter: the next line is none the worse
        if logging.raiseExceptions:
            with contextlib.suppress(Exception):
                traceback.print_exc()


def _instant(local: str, now: float) -> float:
    """In s since the epoch; of the two that a local time is in autumn, the one near `now`."""
    when = datetime.fromisoformat(local)
    return min((when.replace(fold=fold).timestamp() for fold in (0, 1)), key=lambda t: abs(t - now))


#: Of this process.
engine_log: Final = EngineLog()
# `at_exit` registers after this, so the engine ends before its log does; `logging` ends last.
at_end(engine_log.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=engine_log.forked)
