"""Fairness between a busy receiver and the other tasks of its event loop.

A call that takes queued messages never has to suspend. With a few milliseconds of work for each
message it would starve every other task. All callers of one queue therefore share a time slice of
`SLICE_S`. When it is over, the next call suspends for one pass of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from .alarm import clock_of

#: Seconds. Long compared with a pass of the loop (20 us), short compared with what a task can wait.
SLICE_S: Final = 0.004


class FairYield:
    """The time slice that the callers of one queue share.

    Check ``clock() >= ends`` for each message and then await `end`.

    Attributes:
        ends: The end of the slice, on `clock`.
        checked: True if a receive has read the clock since the last ack or nack, which then need
            not read it again.
    """

    __slots__ = ("_ending", "_held", "_loop", "checked", "clock", "ends")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ending = False
        self._held = 0
        self.checked: bool = False
        self.clock: Callable[[], float] = clock_of(loop)  # read for each message
        self.ends: float = 0.0
        self._begin()

    def _begin(self) -> None:
        self._ending = False
        if not self._held:
            self.ends = self.clock() + SLICE_S

    async def end(self) -> None:
        """Suspend for one pass of the loop.

        Of several tasks that call this in one pass, only the first begins a new slice, and the
        others then take one message each. Otherwise a pass would take as long as all these slices
        together.
        """
        if not self._ending:
            self._ending = True
            self._loop.call_soon(self._begin)
        await asyncio.sleep(0)

    def hold(self) -> None:
        """End the slice, and begin none until as many calls of `release`.

        Called when a waiting task was woken: it runs before the caller takes another message.
        """
        self._held += 1
        self.ends = 0.0

    def release(self) -> None:
        self._held -= 1
        if not self._ending:
            self._begin()
