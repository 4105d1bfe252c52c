"""The clock that the broker is handed: what time it is, and what is to be done later.

Owns `Clock`, and `LoopClock` that takes it from an event loop. Nothing else in this package knows
the time or sets a timer, so that a broker runs in virtual time when its loop does, or without a
loop when somebody else keeps the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from ..eventloop.alarm import wall_now_ms


class Timer(Protocol):
    """Something that is to be done later."""

    def cancel(self) -> None:
        """Don't do it; nothing happens when it was done."""


class Clock(Protocol):
    """Two clocks that go alike, and their timers; nothing is called before it was asked for."""

    def now_ms(self) -> float:
        """Monotonic ms, with a fraction."""

    def wall_ms(self) -> int:
        """Ms since the epoch."""

    def call_later(self, delay_s: float, call: Callable[[], object]) -> Timer:
        """Call something when so many seconds are over."""

    def call_soon(self, call: Callable[[], object]) -> object:
        """Call something once what runs now is done, in the order it was asked for."""


class LoopClock:
    """The clock of an event loop, real or virtual."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now_ms(self) -> float:
        return self._loop.time() * 1000

    def wall_ms(self) -> int:
        return wall_now_ms(self._loop)

    def call_later(self, delay_s: float, call: Callable[[], object]) -> Timer:
        return self._loop.call_later(delay_s, call)

    def call_soon(self, call: Callable[[], object]) -> object:
        return self._loop.call_soon(call)
