"""Calls from any thread to one event loop, in order.

Only `Mailbox.post` may be called on other threads. Callbacks of the C++ client may call it, because
it never blocks and never raises.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

_PASS_S: Final = 0.002  # a backlog of calls holds the loop for this long at most


class Mailbox:
    """Runs calls from any thread on one loop, with one wake-up for all pending calls.

    A backlog is worked off in passes of a few milliseconds, so that other tasks run in between.
    """

    __slots__ = ("_items", "_woken", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop: asyncio.AbstractEventLoop = loop
        self._items: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._woken = False

    def post(self, action: Callable[..., None], *args: Any) -> bool:
        """Run `action(*args)` on the loop; return False if the loop is closed or fails."""
        self._items.append((action, args))
        if self._woken:  # the scheduled drain has not begun, and runs this call, too
            return True
        return self._schedule()

    def move(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop is not self.loop:
            self.loop = loop
            self._schedule()

    def take_all(self) -> None:
        """Run all pending calls now, on the loop, before an action that outdates them."""
        for _ in range(len(self._items)):
            self._take()

    def _schedule(self) -> bool:
        self._woken = True
        try:
            self.loop.call_soon_threadsafe(self._drain)
        except Exception:
            # The loop is closed. An exception would end the process if the caller is a thread of
            # the C++ library.
            return False
        return True

    def _drain(self) -> None:
        self._woken = False
        until = time.perf_counter() + _PASS_S
        for _ in range(len(self._items)):
            if time.perf_counter() >= until:
                # A post during this pass may have scheduled the next one already.
                if not self._woken:
                    self._schedule()
                return
            self._take()

    def _take(self) -> None:
        if not self._items:  # a call has run `take_all`
            return
        action, args = self._items.popleft()
        try:
            action(*args)
        except Exception as error:
            self.loop.call_exception_handler(
                {"message": "pulsar_encore: a result was not handled", "exception": error}
            )
