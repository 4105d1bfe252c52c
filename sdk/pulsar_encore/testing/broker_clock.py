"""The clock of a broker that is there before its event loop is, and outlives it.

Owns `BrokerClock`. What is asked of it without a loop, or was under way on one that has ended, is
done on the next.
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
        self._waiting: dict[_Later, None] = {}
        # By the time they are due: what is due together is done in the order it was asked for,
        # which a loop's timers do not promise.
        self._due: dict[float, _Together] = {}

    def enter(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on things are done on this loop, with what is still to be done."""
        self._loop = loop
        self._due.clear()
        for later in list(self._waiting):
            self._begin(loop, later, max(0, later.due_ms - self.wall_ms()) / 1000)

    def now_ms(self) -> float:
        loop = self._running()
        return 0.0 if loop is None else loop.time() * 1000

    def wall_ms(self) -> int:
        loop = self._running()
        return time.time_ns() // 1_000_000 if loop is None else wall_now_ms(loop)

    def call_later(self, delay_s: float, call: Callable[[], object]) -> _Later:
        later = _Later(call, self.wall_ms() + int(delay_s * 1000), self._waiting)
        if self._loop is not None and not self._loop.is_closed():
            self._begin(self._loop, later, delay_s)
        return later

    def call_soon(self, call: Callable[[], object]) -> object:
        later = _Later(call, 0, self._waiting)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon(later.do)
        return later

    def _begin(self, loop: asyncio.AbstractEventLoop, later: _Later, delay_s: float) -> None:
        if delay_s <= 0:
            loop.call_soon(later.do)
            return
        due_s = loop.time() + delay_s
        if due_s not in self._due:
            self._due[due_s] = _Together(loop, due_s, self._due)
        self._due[due_s].add(later)

    def _running(self) -> asyncio.AbstractEventLoop | None:
        try:
            return asyncio.get_running_loop()
        except RuntimeError:
            return self._loop


class _Together:
    """What is due at one time; with the last of it the timer goes."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, due_s: float, all_due: dict[float, _Together]
    ) -> None:
        self._members: dict[_Later, None] = {}
        self._due_s = due_s
        self._all_due = all_due
        self._timer = loop.call_at(due_s, self._do)

    def add(self, later: _Later) -> None:
        """It is due with these."""
        self._members[later] = None
        later.together = self

    def remove(self, later: _Later) -> None:
        """It is not to be done."""
        self._members.pop(later, None)
        if not self._members:
            self._timer.cancel()
            self._forget()

    def _do(self) -> None:
        self._forget()
        for later in list(self._members):
            later.do()

    def _forget(self) -> None:
        if self._all_due.get(self._due_s) is self:
            del self._all_due[self._due_s]


class _Later:
    """Something that is to be done (`Timer`)."""

    __slots__ = ("_call", "_waiting", "due_ms", "together")

    def __init__(
        self, call: Callable[[], object], due_ms: int, waiting: dict[_Later, None]
    ) -> None:
        self.due_ms: int = due_ms
        self._call = call
        self._waiting = waiting
        self.together: _Together | None = None
        waiting[self] = None

    def do(self) -> None:
        """Now, unless `cancel` came first."""
        if self in self._waiting:
            del self._waiting[self]
            self._call()

    def cancel(self) -> None:
        self._waiting.pop(self, None)
        if self.together is not None:
            self.together.remove(self)
