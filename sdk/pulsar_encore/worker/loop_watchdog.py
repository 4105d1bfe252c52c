"""A thread that names the code which blocks an event loop."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from typing import Final

#: Name of the logger, for `logger_of`.
LOGGER: Final = __name__

#: Seconds without an answer of the event loop after which it counts as blocked.
BLOCKED_S: Final = 1.0
# Seconds between two questions. A blockage that begins just after an answer is found this much
# later.
_INTERVAL_S: Final = 0.25
# The process itself stood still (SIGSTOP, a suspended machine, an extension that holds the GIL) if
# a wait takes this much longer than asked. The loop then gets time to answer.
_OVERSLEPT_S: Final = 0.5
_GRACE_S: Final = 0.1


class LoopWatchdog:
    """Logs a WARNING when an event loop is blocked for a second while handlers run.

    A daemon thread asks the loop four times a second to run a callback. If the callback does not
    run within `BLOCKED_S`, the thread logs the stack of the loop's thread, once. When the callback
    runs, it logs how long the blockage lasted. While no handler runs, the thread sleeps.

    Use `watch` to get the watchdog of the running event loop, which all its workers share. It logs
    to the logger of their client, and to the logger of the package if they have several.

    Attributes:
        users: The loggers of the workers that share this watchdog, one for each worker.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self.users: list[logging.Logger] = []
        self._busy = 0
        self._sleeping = False
        self._awake = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @classmethod
    def watch(cls, log: logging.Logger) -> LoopWatchdog:
        """Return the watchdog of the running event loop. Call `release` at the end.

        Args:
            log: The logger of the worker's client, which may be shared by several workers.
        """
        loop = asyncio.get_running_loop()
        watchdog = _watchdogs.get(loop)
        if watchdog is None:
            for each in [each for each in _watchdogs if each.is_closed()]:
                del _watchdogs[each]  # never released
            watchdog = _watchdogs[loop] = cls(loop)
        watchdog.users.append(log)
        return watchdog

    def release(self, log: logging.Logger) -> None:
        """End the thread, if no other worker uses it."""
        self.users.remove(log)
        if not self.users:
            _watchdogs.pop(self._loop, None)
            self._stopped.set()
            self._awake.set()

    @property
    def _log(self) -> logging.Logger:
        different = set(self.users)
        return different.pop() if len(different) == 1 else logging.getLogger(LOGGER)

    def enter(self) -> None:
        """Note that a worker begins to run handlers."""
        self._busy += 1
        if self._thread is None:
            # In virtual time, real seconds say nothing, and a thread would disturb the clock.
            if hasattr(self._loop, "wall_time"):
                return
            self._thread = threading.Thread(
                target=self._watch, name="pulsar-encore-watchdog", daemon=True
            )
            self._thread.start()
        # `_watch` sets `_sleeping` before it reads `_busy`. Either this line sees that the thread
        # sleeps, or the thread sees that a worker is busy.
        elif self._sleeping:
            self._awake.set()

    def leave(self) -> None:
        """Note that a worker runs no handlers."""
        self._busy -= 1

    def _watch(self) -> None:
        while True:
            self._sleeping = True
            if self._busy <= 0 and not self._stopped.is_set():
                self._awake.wait()
            self._sleeping = False
            self._awake.clear()
            if self._stopped.wait(_INTERVAL_S):
                return
            if self._busy > 0 and not self._ask():
                return

    def _ask(self) -> bool:
        """Ask the loop once; return False at the end of the loop or of the watchdog."""
        answered = threading.Event()
        asked_s = time.monotonic()
        try:
            self._loop.call_soon_threadsafe(answered.set)
        except RuntimeError:
            return False  # the loop is closed
        if answered.wait(BLOCKED_S):
            return True
        if time.monotonic() - asked_s > BLOCKED_S + _OVERSLEPT_S and answered.wait(_GRACE_S):
            return True
        # A loop between two calls of `run_until_complete` does not run, and is not blocked.
        is_blocked = self._loop.is_running()
        if is_blocked:
            self._log_stack(time.monotonic() - asked_s)
        while not answered.wait(_INTERVAL_S):
            if self._stopped.is_set() or self._loop.is_closed():
                return False
        if is_blocked:
            self._log.warning(
                "the event loop runs again: it was blocked for %.1f s", time.monotonic() - asked_s
            )
        return True

    def _log_stack(self, blocked_s: float) -> None:
        task = asyncio.current_task(self._loop)
        frame = sys._current_frames().get(self._loop_thread)
        self._log.warning(
            "the event loop has been blocked for %.1f s by %s: acks, timeouts and connections wait "
            "meanwhile. Await instead of blocking, use asyncio.to_thread, or make the handler a "
            "plain function, which runs in a thread. The stack of the event loop:\n%s",
            blocked_s,
            "a callback" if task is None else f"the task {task.get_name()!r}",
            "".join(traceback.format_stack(frame)) if frame is not None else "unknown",
        )


_watchdogs: Final[dict[asyncio.AbstractEventLoop, LoopWatchdog]] = {}
