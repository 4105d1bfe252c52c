"""One timer for many due times.

A later due time never postpones an earlier one. In the C++ client it does, because every nack
restarts the only timer. While nothing is due, no timer runs.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable


def now_ms(loop: asyncio.AbstractEventLoop) -> int:
    """Return the loop's monotonic clock in whole ms, rounded down."""
    return int(loop.time() * 1000)


def clock_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """Return the loop's clock in seconds, without the call around it on the common loops."""
    is_common = type(loop).time is asyncio.BaseEventLoop.time
    return time.monotonic if is_common else loop.time


def due_in_ms(loop: asyncio.AbstractEventLoop, delay_ms: int) -> int:
    """Return a due time on that clock that is never early: the current time is rounded up."""
    return math.ceil(loop.time() * 1000) + delay_ms


def wall_now_ms(loop: asyncio.AbstractEventLoop) -> int:
    """Return ms since the epoch, by the loop's own wall clock if it has one (virtual time)."""
    return int(_wall_s(loop) * 1000)


def wall_due_in_ms(loop: asyncio.AbstractEventLoop, delay_ms: int) -> int:
    """Return a due time in ms since the epoch that is never early."""
    return math.ceil(_wall_s(loop) * 1000) + delay_ms


def _wall_s(loop: asyncio.AbstractEventLoop) -> float:
    clock: Callable[[], float] = getattr(loop, "wall_time", time.time)
    return clock()


class Alarm:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._fire: Callable[[int], int | None] = _nothing
        self._handle: asyncio.TimerHandle | None = None
        self._due_ms = 0
        self._closed = False

    def start(self, fire: Callable[[int], int | None]) -> None:
        """Set the function to call with the time in ms.

        `fire` handles everything that is due and returns the next due time in ms, or None.
        """
        self._fire = fire

    def at(self, due_ms: int | None) -> None:
        """Set the alarm for `due_ms`, unless it is set for an earlier time or is closed."""
        if due_ms is None or self._closed:
            return
        if self._handle is not None and self._due_ms <= due_ms:
            return
        if self._handle is not None:
            self._handle.cancel()
        self._due_ms = due_ms
        # One ms more: the clock is read in whole ms, and the alarm must not be early.
        when = (due_ms + 1) / 1000
        self._handle = self._loop.call_at(max(when, self._loop.time()), self._ring)

    def _ring(self) -> None:
        self._handle = None
        self.at(self._fire(now_ms(self._loop)))

    def close(self) -> None:
        """Stop for good. Messages that arrive while a consumer closes may still call `at`."""
        self._closed = True
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


def _nothing(now_ms: int) -> int | None:
    return None
