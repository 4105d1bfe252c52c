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
        self._under_way: dict[asyncio.AbstractEventLoop | None, int] = {}
        self._waiting: list[Callable[[], None]] = []

    async def make(self, calls: CppCalls, start: Start, doing: str) -> Any:
        """What `start` makes; closed, not orphaned, when the caller is gone before it comes.

        Raises:
            ClosedError: `calls` was abandoned.
            TransportError: It failed.
        """
        loop = asyncio.get_running_loop()
        left = self._begin(loop)

        def begin(done: Callable[..., None]) -> None:
            answered = self._begin(loop)

            def answer(*outcome: Any) -> None:
                done(*outcome)  # first: there the closing of what is unwanted begins
                answered()

            try:
                start(answer)
            except BaseException:
                answered()
                raise

        def discard(native: Any) -> None:
            native.close_async(self._begin(None if loop.is_closed() else loop))

        try:
            return await calls.run(begin, doing, discard=discard)
        finally:
            left()

    def then(self, action: Callable[[], None]) -> None:
        """Call `action` once nothing is under way: now, or later on a loop or a native thread."""
        with self._lock:
            self._waiting.append(action)
        self._check()

    async def settled(self) -> None:
        """Wait until nothing is under way."""
        loop = asyncio.get_running_loop()
        nothing = asyncio.Event()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # closed: nobody waits any more
                loop.call_soon_threadsafe(nothing.set)

        self.then(tell)
        await nothing.wait()

    def _begin(self, loop: asyncio.AbstractEventLoop | None) -> Callable[..., None]:
        """Count one more; returns what counts it off, once, from any thread.

        On the loop, where there is one: what that was told before, to give something back, goes
        before.
        """
        with self._lock:
            self._under_way[loop] = self._under_way.get(loop, 0) + 1

        def end() -> None:
            with self._lock:
                left = self._under_way.pop(loop, 0) - 1
                if left > 0:
                    self._under_way[loop] = left
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
            for loop in list(self._under_way):
                if loop is not None and loop.is_closed():
                    del self._under_way[loop]
            if self._under_way:
                return
            actions, self._waiting = self._waiting, []
        for action in actions:
            action()
