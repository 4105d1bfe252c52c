"""Pending creations of native objects, including abandoned ones.

A native client that is closed during a creation, or during the close of an unwanted object, keeps
threads and descriptors for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

from .cpp_calls import CppCalls, Start


class Creations:
    """Counts the pending creations of one native client, for all event loops that use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Counted by loop. A closed loop drops its scheduled callbacks, so its counts are void.
        self._pending: dict[asyncio.AbstractEventLoop | None, int] = {}
        self._waiting: list[Callable[[], None]] = []

    async def make(self, calls: CppCalls, start: Start, action: str) -> Any:
        """Return the object that `start` creates, or close it if the caller is cancelled before."""
        loop = asyncio.get_running_loop()
        caller_done = self._begin(loop)

        def begin(done: Callable[..., None]) -> None:
            native_done = self._begin(loop)

            def answer(*outcome: Any) -> None:
                done(*outcome)  # first, because this begins to close an unwanted object
                native_done()

            try:
                start(answer)
            except BaseException:
                native_done()
                raise

        def discard(native: Any) -> None:
            native.close_async(self._begin(None if loop.is_closed() else loop))

        try:
            return await calls.run(begin, action, discard=discard)
        finally:
            caller_done()

    def then(self, action: Callable[[], None]) -> None:
        """Call `action` once nothing is pending, on any thread."""
        with self._lock:
            self._waiting.append(action)
        self._check()

    async def settled(self) -> None:
        loop = asyncio.get_running_loop()
        all_done = asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(all_done.set)

        self.then(wake)
        await all_done.wait()

    def _begin(self, loop: asyncio.AbstractEventLoop | None) -> Callable[..., None]:
        """Count one pending creation. Return a function for any thread that ends it.

        The count goes down after the callbacks that the loop has scheduled, which may close an
        object.
        """
        with self._lock:
            self._pending[loop] = self._pending.get(loop, 0) + 1

        def end() -> None:
            with self._lock:
                remaining = self._pending.pop(loop, 0) - 1
                if remaining > 0:
                    self._pending[loop] = remaining
            self._check()

        def end_soon(*_outcome: Any) -> None:
            try:
                if loop is not None:
                    loop.call_soon_threadsafe(end)
                    return
            except BaseException:  # the loop is closed, and a native thread must not raise
                pass
            with contextlib.suppress(BaseException):
                end()

        return end_soon

    def _check(self) -> None:
        with self._lock:
            for loop in list(self._pending):
                if loop is not None and loop.is_closed():
                    del self._pending[loop]
            if self._pending:
                return
            actions, self._waiting = self._waiting, []
        for action in actions:
            action()
