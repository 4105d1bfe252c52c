"""From any thread to one event loop: work handed over, in order, without keeping the loop.

Owns `Mailbox`. Only `post` may be called on other threads; it never blocks and never raises, so
that the C++ library's callback may call it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

_PASS_S: Final = 0.002  # the longest that what has piled up keeps the loop


class Mailbox:
    """Hands work from any thread to one loop, with a single wake-up for all that waits.

    What has piled up behind a busy loop is done in passes of a few ms, in order; between two of
    them the loop sees to everything else.
    """

    __slots__ = ("_items", "_woken", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop: asyncio.AbstractEventLoop = loop
        self._items: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._woken = False

    def post(self, action: Callable[..., None], *args: Any) -> bool:
        """Run `action(*args)` on the loop. Never raises; False if the loop is closed or fails."""
        self._items.append((action, args))
        if self._woken:  # the drain that is scheduled has not begun: it takes this one too
            return True
        return self._schedule()

    def move(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hand over to `loop` from now on, with what the last one did not get to."""
        if loop is not self.loop:
            self.loop = loop
            self._schedule()

    def take_all(self) -> None:
        """Run what was posted so far now, on the loop: before something that outdates it."""
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
                # A post since the pass began has scheduled the next already; two do no harm.
                if not self._woken:
                    self._schedule()
                return
            self._take()

    def _take(self) -> None:
        if not self._items:  # what ran has taken all
            return
        action, args = self._items.popleft()
        try:
            action(*args)
        except Exception as error:
            self.loop.call_exception_handler(
                {"message": "pulsar_encore: a result was not handled", "exception": error}
            )
