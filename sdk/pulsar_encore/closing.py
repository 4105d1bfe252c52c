"""Closing once: every caller waits for the same close, and none can stop it half-way.

Owns `CloseOnce`, which the client, its producers and its readers share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class CloseOnce:
    """Runs a close at most once; cancelling a caller leaves it running."""

    __slots__ = ("_close", "_task")

    def __init__(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._close = close
        self._task: asyncio.Task[None] | None = None

    async def __call__(self) -> None:
        loop = asyncio.get_running_loop()
        task = self._task
        # A loop that ended half-way took its task with it: begin again on this one.
        if task is None or task.cancelled() or (not task.done() and task.get_loop() is not loop):
            task = self._task = loop.create_task(self._close())
        await asyncio.shield(task)
