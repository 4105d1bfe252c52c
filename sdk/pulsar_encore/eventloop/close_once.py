"""Closing once: every caller waits for the same close, and none can stop it half-way.

Owns `CloseOnce`, which the client, its producers and its readers share, `to_its_end` for work that
is half done, and the warning about what was never closed.
"""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Callable, Coroutine
from inspect import ismethod
from typing import Any, TypeVar
from weakref import WeakMethod, finalize

T = TypeVar("T")


class CloseOnce:
    """Runs a close at most once; cancelling a caller leaves it running.

    Args:
        close: Of the object that holds this; not kept by it, so that an object nobody has any more
            is gone at once, with its threads and connections.
    """

    __slots__ = ("_close", "_task")

    def __init__(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._close = WeakMethod(close) if ismethod(close) else lambda: close
        self._task: asyncio.Task[None] | None = None

    async def __call__(self) -> None:
        loop = asyncio.get_running_loop()
        task = self._task
        close = self._close()
        assert close is not None  # who calls has its object
        # A loop that ended half-way took its task with it: begin again on this one.
        if task is None or task.cancelled() or (not task.done() and task.get_loop() is not loop):
            task = self._task = loop.create_task(close())
        await asyncio.shield(seen(task))


def seen(task: asyncio.Task[T]) -> asyncio.Task[T]:
    """Mark the outcome of a task as retrieved once the task is done.

    `asyncio.shield` forgets its task when the caller is cancelled (CPython 3.11), and an error of
    the task would be logged as one that "was never retrieved".
    """
    task.add_done_callback(_retrieve)
    return task


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


def warn_unless_closed(thing: object, name: str) -> finalize[[str, int], object]:
    """A `ResourceWarning` when `thing` is collected, or the process ends.

    Args:
        thing: What is to be closed.
        name: What the warning calls it.

    Returns:
        Its `detach` calls the warning off.
    """
    return finalize(thing, _warn, name, os.getpid())


def _warn(name: str, pid: int) -> None:
    if os.getpid() != pid:
        return  # a forked child has nothing to close
    warnings.warn(
        f"{name} was never closed: use `async with`, or await its close()",
        ResourceWarning,
        stacklevel=2,
    )


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Await work that a cancel must not leave half done; the cancel takes effect afterwards."""
    task = seen(asyncio.get_running_loop().create_task(work))
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()
