"""SIGTERM and SIGINT of this process: the first drains every run, a second ends the process."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from typing import Final, Protocol

OVERTIME_S: Final = 1.0
"""How long after the end of the budget a run that does not return ends the process."""
_LOG_TIMEOUT_S: Final = 0.5  # a log handler may wait for a lock of the blocked thread

_NUMBERS: Final = (signal.SIGTERM, signal.SIGINT)
_HANDLED: Final = 0x80  # marks bytes that the Python handler writes; signal numbers are below
_STOP: Final = b"\0"


class SignalledRun(Protocol):
    """A run whose workers drain at a signal."""

    @property
    def names(self) -> str: ...

    @property
    def budget_s(self) -> float: ...

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def thread(self) -> int: ...

    @property
    def log(self) -> logging.Logger:
        """The logger for records about this run."""

    def on_signal(self, name: str, at: float) -> None:
        """Begin the drain. Called on the loop; `at` is the `time.monotonic()` of the signal."""

    def is_unfinished(self) -> bool:
        """Return True if the run has not returned, or left handlers behind. Any thread calls it."""


class _SignalWatch:
    """The installed signal handlers, and the thread that acts on signals.

    A Python signal handler runs between two bytecodes of the main thread. It therefore runs in a
    handler that blocks the event loop with `time.sleep`, and not in one that waits in C code, such
    as a query of a synchronous database driver. The interpreter's own handler in C also writes the
    signal's number to the wakeup fd, at any moment, so the thread reads that. Another owner of the
    wakeup fd may replace it (`loop.add_signal_handler` does), so the Python handler writes, too.
    Each of the two counts signals for itself, and the larger count is right.

    Windows has a wakeup fd that belongs to the event loop, and delivers SIGINT only.
    """

    def __init__(self, owner: str) -> None:
        self.owner: str = owner
        self.runs: tuple[SignalledRun, ...] = ()
        self.first: tuple[str, float] | None = None  # name and time of the first signal
        self.uninstalled: bool = False
        self._written = 0  # signals that the wakeup fd reported
        self._handled = 0  # signals that the Python handler reported
        self._exit_code = 0
        self._deadline: float | None = None
        self._budget_s = 0.0
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._earlier: dict[int, object] = {}
        self._earlier_fd = -1
        self._owns_fd = False

    def install(self) -> None:
        """Start the thread and set the handlers, on the main thread."""
        threading.Thread(target=self._watch, name="pulsar-encore-signals", daemon=True).start()
        try:
            if sys.platform != "win32":
                fd = self._writer.fileno()
                self._earlier_fd = signal.set_wakeup_fd(fd, warn_on_full_buffer=False)
                self._owns_fd = True
            for number in _NUMBERS:
                self._earlier[number] = signal.signal(number, self._on_signal)
        except BaseException:
            self.uninstall()
            raise

    def uninstall(self) -> None:
        """Restore the earlier handlers, on the main thread. Unfinished runs are still watched."""
        self.restore()
        self.uninstalled = True
        self._send(_STOP)

    def restore(self) -> None:
        for number, handler in self._earlier.items():
            # None means that the handler was not set in Python.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # type: ignore[arg-type]
        self._earlier.clear()
        if self._owns_fd:
            self._owns_fd = False
            current = signal.set_wakeup_fd(self._earlier_fd)
            if current != self._writer.fileno():  # replaced during the run
                signal.set_wakeup_fd(current)

    def forget_in_child(self) -> None:
        """Restore the handlers in a forked child: it would write into the parent's sockets."""
        self.restore()
        self._reader.close()
        self._writer.close()

    def _on_signal(self, number: int, frame: object) -> None:
        self._send(bytes([number | _HANDLED]))

    def _send(self, data: bytes) -> None:
        try:
            self._writer.send(data)
        except OSError:
            pass  # the buffer is full of signals, or the thread has ended

    def _watch(self) -> None:
        try:
            while self._read():
                if self.uninstalled and not self._is_draining():
                    return
        finally:
            self._reader.close()
            self._writer.close()

    def _is_draining(self) -> bool:
        return self.first is not None and any(each.is_unfinished() for each in self.runs)

    def _read(self) -> bool:
        """Wait for bytes and act on them. Return False if the deadline is over."""
        left = None if self._deadline is None else self._deadline - time.monotonic()
        if left is not None and left <= 0:
            self._end_if_unfinished()
            return False
        self._reader.settimeout(left)
        try:
            data = self._reader.recv(4096)
        except TimeoutError:
            return True
        for byte in data:
            number = byte & ~_HANDLED
            if number in _NUMBERS:
                if byte & _HANDLED:
                    self._handled += 1
                else:
                    self._written += 1
                self._count(number)
            elif number and self._earlier_fd >= 0:
                self._forward(byte)
        return bool(data)

    def _forward(self, byte: int) -> None:
        """Pass another signal on to the earlier owner of the wakeup fd, such as uvloop."""
        try:
            os.write(self._earlier_fd, bytes([byte]))
        except OSError:
            pass

    def _count(self, number: int) -> None:
        name = signal.Signals(number).name
        if self.first is None:
            now = time.monotonic()
            self._exit_code = 128 + number
            self._budget_s = max((each.budget_s for each in self.runs), default=0.0)
            self._deadline = now + self._budget_s + OVERTIME_S
            self.first = (name, now)
            for run in self.runs:
                self.signal(run)
        elif max(self._written, self._handled) >= 2:
            _end_process(
                f"{name} came after {self.first[0]}, so the process ends at once with exit code "
                f"{128 + number}. Messages that are not acked are redelivered",
                128 + number,
                self.runs,
            )

    def signal(self, run: SignalledRun) -> None:
        """Tell a run about the first signal, on its loop."""
        if self.first is not None:
            try:
                run.loop.call_soon_threadsafe(run.on_signal, *self.first)
            except RuntimeError:
                pass  # the loop was closed under the run

    def _end_if_unfinished(self) -> None:
        unfinished = [each for each in self.runs if each.is_unfinished()]
        if unfinished and self.first is not None:
            names = ", ".join(each.names for each in unfinished)
            stacks = "\n".join(_stack(each.thread) for each in unfinished)
            _end_process(
                f"{self.first[0]} came {time.monotonic() - self.first[1]:.1f} s ago, the drain may "
                f"take {self._budget_s:g} s, and {names} has not ended: a handler blocks the event "
                "loop or ignores its cancellation. The process ends now with exit code "
                f"{self._exit_code}. Messages that are not acked are redelivered. The thread of "
                f"the event loop is here:\n{stacks}",
                self._exit_code,
                unfinished,
            )


def _stack(thread: int) -> str:
    frame = sys._current_frames().get(thread)
    return "".join(traceback.format_stack(frame)) if frame else "(the thread has ended)"


def _end_process(reason: str, code: int, runs: Iterable[SignalledRun]) -> None:
    """Log an error to the loggers of runs, and end the process with an exit code.

    `sys.exit` would only end this thread, and a normal end of the process would wait for the event
    loop. So nothing is cleaned up: connections break, and durable state is as after a kill, which
    it survives.
    """

    def write() -> None:
        for log in dict.fromkeys(each.log for each in runs):
            log.error("%s", reason)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()

    try:
        # In a thread, because a log handler may wait for a lock that a blocked thread holds.
        writer = threading.Thread(target=write, name="pulsar-encore-last-words", daemon=True)
        writer.start()
        writer.join(_LOG_TIMEOUT_S)
    finally:
        os._exit(code)


class DrainSignals:
    """The signal handling that all runs of a process share.

    The first run on the main thread installs the handlers, and the last one there restores the
    earlier handlers. Meanwhile a signal drains every run of the process, on whatever thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: tuple[SignalledRun, ...] = ()
        self._watch: _SignalWatch | None = None

    def add(self, run: SignalledRun) -> None:
        """Drain a run at a signal, or at once if a signal has come. Log who handles signals."""
        with self._lock:
            self._runs = (*self._runs, run)
            watch = self._watch
            if watch is None and threading.current_thread() is threading.main_thread():
                self._install(run)
            elif watch is None:
                run.log.warning(
                    "%s runs outside the main thread, where Python cannot handle signals: SIGTERM "
                    "and SIGINT do not drain it. Call worker.stop() instead",
                    run.names,
                )
            else:
                run.log.info(
                    "SIGTERM and SIGINT belong to the run of %s. They also drain %s",
                    watch.owner,
                    run.names,
                )
                watch.runs = (*watch.runs, run)
                watch.signal(run)

    def _install(self, run: SignalledRun) -> None:
        watch = _SignalWatch(run.names)
        watch.runs = self._runs  # also those of other threads
        try:
            watch.install()
        except (ValueError, OSError, RuntimeError) as error:
            run.log.warning(
                "signal handlers cannot be installed here (%s): SIGTERM and SIGINT do not drain "
                "%s. Call worker.stop() instead",
                error,
                run.names,
            )
            return
        if sys.platform == "win32":
            run.log.info(
                "Ctrl-C drains %s. Windows delivers no SIGTERM: call worker.stop() instead",
                run.names,
            )
        self._watch = watch

    def remove(self, run: SignalledRun) -> None:
        """Forget a run that returns. The last one on the main thread restores the handlers."""
        with self._lock:
            self._runs = tuple(each for each in self._runs if each is not run)
            watch = self._watch
            if watch is None:
                return
            if not run.is_unfinished():
                watch.runs = tuple(each for each in watch.runs if each is not run)
            main = threading.main_thread()
            if threading.current_thread() is not main or _on_thread(self._runs, main.ident):
                return
            self._watch = None
            watch.uninstall()
            for each in self._runs if watch.first is None else ():
                each.log.warning(
                    "the run of %s has ended, so SIGTERM and SIGINT no longer drain %s. Call "
                    "worker.stop() instead",
                    watch.owner,
                    each.names,
                )

    def reset_in_child(self) -> None:
        """Forget all runs in a forked child: they live in the parent."""
        watch, self._watch = self._watch, None
        self._lock = threading.Lock()  # another thread of the parent may have held the old one
        self._runs = ()
        if watch is not None:
            watch.forget_in_child()


def _on_thread(runs: Iterable[SignalledRun], thread: int | None) -> bool:
    return any(each.thread == thread for each in runs)


signals: Final = DrainSignals()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=signals.reset_in_child)
