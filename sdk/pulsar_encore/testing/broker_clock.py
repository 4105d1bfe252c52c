"""The clock of a broker that exists before its event loop and outlives it.

Calls that are scheduled without a loop, or on a loop that has ended, run on the next loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from ..eventloop.alarm import wall_now_ms


class BrokerClock:
    """The time of the running loop, real or virtual (`Clock`)."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[_ScheduledCall, None] = {}
        # By due time: a loop does not promise the order of timers with the same time.
        self._groups: dict[float, _CallGroup] = {}

    def enter(self, loop: asyncio.AbstractEventLoop) -> None:
        """Use this loop from now on, also for pending calls."""
        self._loop = loop
        self._groups.clear()
        for scheduled in list(self._waiting):
            self._begin(loop, scheduled, max(0, scheduled.due_ms - self.wall_ms()) / 1000)

    def now_ms(self) -> float:
        loop = self._current_loop()
        return 0.0 if loop is None else loop.time() * 1000

    def wall_ms(self) -> int:
        loop = self._current_loop()
        return time.time_ns() // 1_000_000 if loop is None else wall_now_ms(loop)

    def call_later(self, delay_s: float, call: Callable[[], object]) -> _ScheduledCall:
        scheduled = _ScheduledCall(call, self.wall_ms() + int(delay_s * 1000), self._waiting)
        if self._loop is not None and not self._loop.is_closed():
            self._begin(self._loop, scheduled, delay_s)
        return scheduled

    def call_soon(self, call: Callable[[], object]) -> object:
        scheduled = _ScheduledCall(call, 0, self._waiting)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon(scheduled.run)
        return scheduled

    def _begin(
        self, loop: asyncio.AbstractEventLoop, scheduled: _ScheduledCall, delay_s: float
    ) -> None:
        if delay_s <= 0:
            loop.call_soon(scheduled.run)
            return
        due_s = loop.time() + delay_s
        if due_s not in self._groups:
            self._groups[due_s] = _CallGroup(loop, due_s, self._groups)
        self._groups[due_s].add(scheduled)

    def _current_loop(self) -> asyncio.AbstractEventLoop | None:
        try:
            return asyncio.get_running_loop()
        except RuntimeError:
            return self._loop


class _CallGroup:
    """The calls with one due time. Removing the last call cancels the timer."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, due_s: float, all_due: dict[float, _CallGroup]
    ) -> None:
        self._calls: dict[_ScheduledCall, None] = {}
        self._due_s = due_s
        self._groups = all_due
        self._timer = loop.call_at(due_s, self._run)

    def add(self, scheduled: _ScheduledCall) -> None:
        self._calls[scheduled] = None
        scheduled.group = self

    def remove(self, scheduled: _ScheduledCall) -> None:
        self._calls.pop(scheduled, None)
        if not self._calls:
            self._timer.cancel()
            self._remove()

    def _run(self) -> None:
        self._remove()
        for scheduled in list(self._calls):
            scheduled.run()

    def _remove(self) -> None:
        if self._groups.get(self._due_s) is self:
            del self._groups[self._due_s]


class _ScheduledCall:
    """A scheduled call (`Timer`)."""

    __slots__ = ("_call", "_waiting", "due_ms", "group")

    def __init__(
        self, call: Callable[[], object], due_ms: int, waiting: dict[_ScheduledCall, None]
    ) -> None:
        self.due_ms: int = due_ms
        self._call = call
        self._waiting = waiting
        self.group: _CallGroup | None = None
        waiting[self] = None

    def run(self) -> None:
        if self in self._waiting:
            del self._waiting[self]
            self._call()

    def cancel(self) -> None:
        self._waiting.pop(self, None)
        if self.group is not None:
            self.group.remove(self)
