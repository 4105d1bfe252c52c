"""Native producers, consumers and readers on their way, also those that nobody waits for any more.

Owns `Creations`. A native client that is closed while something of it is being made, or given back
unwanted, keeps threads and descriptors for ever; so it is ended only when nothing is.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

from .cpp_calls import CppCalls, Start


class Creations:
    """Counts what is under way in one native client, on whichever event loops it is used from."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By loop: a closed one takes what it was told last with it, so its counts mean nothing.
        self._pending: dict[asyncio.AbstractEventLoop | None, int] = {}
        self._waiting: list[Callable[[], None]] = []

    async def make(self, calls: CppCalls, start: Start, action: str) -> Any:
        """What `start` makes; closed, not orphaned, when the caller is gone before it comes.

        Raises:
            ClosedError: `calls` was abandoned.
            TransportError: It failed.
        """
        loop = asyncio.get_running_loop()
        caller_done = self._begin(loop)

        def begin(done: Callable[..., None]) -> None:
            native_done = self._begin(loop)

            def answer(*outcome: Any) -> None:
                done(*outcome)  # first: there the closing of what is unwanted begins
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
        """Call `action` once nothing is under way: now, or later on a loop or a native thread."""
        with self._lock:
            self._waiting.append(action)
        self._check()

    async def settled(self) -> None:
        """Wait until nothing is under way."""
        loop = asyncio.get_running_loop()
        all_done = asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # closed: nobody waits any more
                loop.call_soon_threadsafe(all_done.set)

        self.then(wake)
        await all_done.wait()

    def _begin(self, loop: asyncio.AbstractEventLoop | None) -> Callable[..., None]:
        """Count one more; returns what counts it off, once, from any thread.

        On the loop, where there is one: what that was told before, to give something back, goes
        before.
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
            except BaseException:  # closed; and on a native thread nothing may pass
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
