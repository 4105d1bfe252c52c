"""One call for all callers that wait for the same answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from ..eventloop.shielded_work import seen, shielded

T = TypeVar("T")


class SharedCall(Generic[T]):
    """Runs one call at a time on each event loop.

    A function that hangs therefore blocks one thread, not one for each attempt to connect. The call
    is shielded: a cancelled caller must not fail the others.
    """

    def __init__(self) -> None:
        self._pending: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[T]] = (
            WeakKeyDictionary()
        )

    async def run(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await the pending call, or begin one of `function`."""
        loop = asyncio.get_running_loop()
        task = self._pending.get(loop)
        if task is None or task.done():
            task = self._pending[loop] = seen(loop.create_task(function()))
        return await shielded(task)
