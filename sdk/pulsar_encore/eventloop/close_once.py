"""Helpers for closing: one close for all callers, and a warning if none was made."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Callable, Coroutine
from inspect import ismethod
from typing import Any
from weakref import WeakMethod, finalize

from .shielded_work import shielded


class CloseOnce:
    """Runs a close at most once. Every caller waits for it. Cancelling a caller leaves it running.

    The close method is held weakly, so that an object without references is freed at once.
    """

    __slots__ = ("_close", "_task")

    def __init__(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._close = WeakMethod(close) if ismethod(close) else lambda: close
        self._task: asyncio.Task[None] | None = None

    async def __call__(self) -> None:
        loop = asyncio.get_running_loop()
        task = self._task
        close = self._close()
        assert close is not None  # the caller holds the object
        # If the loop of an earlier close has ended, its task never finishes: close again here.
        if task is None or task.cancelled() or (not task.done() and task.get_loop() is not loop):
            task = self._task = loop.create_task(close())
        await shielded(task)


def warn_unless_closed(thing: object, name: str) -> finalize[[str, int], object]:
    """Give a `ResourceWarning` when `thing` is collected; `detach` of the result cancels it."""
    return finalize(thing, _warn, name, os.getpid())


def _warn(name: str, pid: int) -> None:
    if os.getpid() != pid:
        return  # a forked child has nothing to close
    warnings.warn(
        f"{name} was never closed: use `async with`, or await its close()",
        ResourceWarning,
        stacklevel=2,
    )
