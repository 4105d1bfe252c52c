"""One alarm for everything that waits: sleeps until the head is due, re-arms when the head moves.

Owns `Alarm`. A later due time never postpones an earlier one (the stock client's fault: every nack
re-arms its only timer), and with nothing due nothing runs.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable


def now_ms(loop: asyncio.AbstractEventLoop) -> int:
    """The loop's monotonic clock in whole ms: the one that has begun."""
    return int(loop.time() * 1000)


def due_in_ms(loop: asyncio.AbstractEventLoop, delay_ms: int) -> int:
    """A due time on that clock, so late that `now_ms` does not reach it before the delay is over.

    Counted from the ms that has begun, it would be up to 1 ms early.
    """
    return math.ceil(loop.time() * 1000) + delay_ms


def wall_now_ms(loop: asyncio.AbstractEventLoop) -> int:
    """Ms since the epoch; by the loop's own wall clock where it has one, as virtual time does."""
    return int(_wall_s(loop) * 1000)


def wall_due_in_ms(loop: asyncio.AbstractEventLoop, delay_ms: int) -> int:
    """A due time in ms since the epoch; as `due_in_ms`, never reached before the delay is over."""
    return math.ceil(_wall_s(loop) * 1000) + delay_ms


def _wall_s(loop: asyncio.AbstractEventLoop) -> float:
    clock: Callable[[], float] = getattr(loop, "wall_time", time.time)
    return clock()


class Alarm:
    """Calls `fire(now_ms)` when the earliest due time is reached.

    Args:
        loop: Where it runs.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._fire: Callable[[int], int | None] = _nothing
        self._handle: asyncio.TimerHandle | None = None
        self._due_ms = 0
        self._closed = False

    def start(self, fire: Callable[[int], int | None]) -> None:
        """Ring for `fire` from now on.

        Args:
            fire: Does what is due and returns the next due time in ms, or None when nothing waits.
        """
        self._fire = fire

    def at(self, due_ms: int | None) -> None:
        """Something is due at `due_ms`; a no-op if the alarm rings by then, or is closed."""
        if due_ms is None or self._closed:
            return
        if self._handle is not None and self._due_ms <= due_ms:
            return
        if self._handle is not None:
            self._handle.cancel()
        self._due_ms = due_ms
        # One ms more: the loop's clock is read in whole ms, and early is not an option.
        when = (due_ms + 1) / 1000
        self._handle = self._loop.call_at(max(when, self._loop.time()), self._ring)

    def _ring(self) -> None:
        self._handle = None
        self.at(self._fire(now_ms(self._loop)))

    def close(self) -> None:
        """Never ring again. Messages can still arrive while a consumer closes, and call `at`."""
        self._closed = True
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


def _nothing(now_ms: int) -> int | None:
    return None
