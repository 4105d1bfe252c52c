"""Native producers, consumers and readers on their way, also those that nobody waits for any more.

Owns `Creations`. A native client that is closed while something of it is being made, or given back
unwanted, keeps threads and descriptors for ever; so it is ended only when nothing is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from .results import Calls, Start


class Creations:
    """Counts what is under way in one native client. On its event loop, while that runs."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._under_way = 0
        self._waiting: list[Callable[[], None]] = []

    async def make(self, calls: Calls, start: Start, doing: str) -> Any:
        """What `start` makes; closed, not orphaned, when the caller is gone before it comes.

        Raises:
            ClosedError: `calls` was abandoned.
            TransportError: It failed.
        """
        self._loop = asyncio.get_running_loop()
        left = self._begin()

        def begin(done: Callable[..., None]) -> None:
            answered = self._begin()

            def answer(*outcome: Any) -> None:
                done(*outcome)  # first: there the closing of what is unwanted begins
                answered()

            try:
                start(answer)
            except BaseException:
                answered()
                raise

        def discard(native: Any) -> None:
            native.close_async(self._begin())

        try:
            return await calls.run(begin, doing, discard=discard)
        finally:
            left()

    def then(self, action: Callable[[], None]) -> None:
        """Call `action` once nothing is under way: now, or later on the loop or a native thread."""
        self._waiting.append(action)
        self._check()

    async def settled(self) -> None:
        """Wait until nothing is under way."""
        nothing = asyncio.Event()
        self.then(nothing.set)
        await nothing.wait()

    def _begin(self) -> Callable[..., None]:
        """Count one more; returns what counts it off, once, from any thread."""
        loop = self._loop
        assert loop is not None
        self._under_way += 1

        def end() -> None:
            self._under_way -= 1
            self._check()

        def end_soon(*_outcome: Any) -> None:
            try:
                loop.call_soon_threadsafe(end)
            except BaseException:  # closed; and on a native thread nothing may pass
                self._check()

        return end_soon

    def _check(self) -> None:
        # A closed loop takes what it was told last with it: then nothing is waited for.
        if self._under_way == 0 or (self._loop is not None and self._loop.is_closed()):
            actions, self._waiting = self._waiting, []
            for action in actions:
                action()
