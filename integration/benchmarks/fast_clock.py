"""Compressed time: an event loop whose clock runs several times as fast as the machine's.

All timers on the loop count in that time, so that an hour at speed 20 takes three minutes. Unlike
virtual time, compressed time suits sockets and several processes. Work is not compressed: a
callback that computes for 1 ms takes 20 ms of the loop's time. A timer may be late by 1 ms of real
time, the granularity of the selector.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _FastSelector(selectors.DefaultSelector):
    """Waits for a fraction of the timeout."""

    def __init__(self, speed: float) -> None:
        super().__init__()
        self._speed = speed

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(None if timeout is None else timeout / self._speed)


class FastLoop(asyncio.SelectorEventLoop):
    """An event loop in compressed time.

    Args:
        speed: Seconds of the loop in a second of the machine.
        since_s: `time.monotonic()` at which the compressed time began. Processes with the same
            value have the same wall time.
        now: The machine's monotonic clock.
    """

    def __init__(
        self, speed: float, since_s: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._speed = speed
        self._since_s = since_s
        self._now = now
        self._epoch_s = time.time() - (now() - since_s)
        super().__init__(_FastSelector(speed))

    def time(self) -> float:
        """Return compressed seconds since `since_s`."""
        return (self._now() - self._since_s) * self._speed

    def wall_time(self) -> float:
        """Return seconds since the epoch, on a clock that advances with `time`."""
        return self._epoch_s + self.time()


def run_fast(main: Coroutine[Any, Any, T], *, speed: float, since_s: float) -> T:
    """Run a coroutine like `asyncio.run`, in compressed time."""
    with asyncio.Runner(loop_factory=lambda: FastLoop(speed, since_s)) as runner:
        return runner.run(main)
