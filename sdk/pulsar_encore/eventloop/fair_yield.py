"""Letting the event loop run: a call that need not suspend does so once a few ms are used up.

Owns `FairYield`. What is queued is handed out without suspending, which is fast and, with work of a
few ms a message, would keep every other task, timer and socket waiting. So a turn of `TURN_S` is
shared by all who take from one source; once it is over, the next call suspends for one pass of the
loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

#: Seconds. Long against a pass of the loop (20 us), short against what others can wait for.
TURN_S: Final = 0.004


class FairYield:
    """The time until the next suspension; check `turn.clock() >= turn.ends`, then `await end()`.

    Attributes:
        ends: On `clock`.
        checked: A receive has looked at the clock since the last settlement, which need not.

    Args:
        loop: Whose clock counts, so that virtual time decides where time is virtual.
    """

    __slots__ = ("_ending", "_held", "_loop", "checked", "clock", "ends")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ending = False
        self._held = 0
        self.checked: bool = False
        # Read for each message: what the common loops' clock reads, without the call around it.
        common = type(loop).time is asyncio.BaseEventLoop.time
        self.clock: Callable[[], float] = time.monotonic if common else loop.time
        self.ends: float = 0.0
        self._begin()

    def _begin(self) -> None:
        self._ending = False
        if not self._held:
            self.ends = self.clock() + TURN_S

    async def end(self) -> None:
        """Let the loop run once, and whoever was ready before the caller.

        Of several tasks only the first begins a new turn: each of the others gets to one message,
        or a pass of the loop would take a turn for each.
        """
        if not self._ending:
            self._ending = True
            self._loop.call_soon(self._begin)
        await asyncio.sleep(0)

    def hold(self) -> None:
        """Somebody was woken and goes first; no turn begins until as many `release` calls."""
        self._held += 1
        self.ends = 0.0

    def release(self) -> None:
        """Who was woken has run."""
        self._held -= 1
        if not self._ending:
            self._begin()
