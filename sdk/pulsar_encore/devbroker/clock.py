"""The broker's only source of time and timers. Another clock may run in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from ..eventloop.alarm import wall_now_ms


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancel the call. Does nothing if it has run."""


class Clock(Protocol):
    """A monotonic clock and a wall clock that advance alike. No call runs early."""

    def now_ms(self) -> float:
        """Return monotonic ms, with a fraction."""

    def wall_ms(self) -> int:
        """Return ms since the epoch."""

    def call_later(self, delay_s: float, call: Callable[[], object]) -> Timer:
        """Call a function after a delay."""

    def call_soon(self, call: Callable[[], object]) -> object:
        """Call a function after the current one, in the order of the `call_soon` calls."""


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
