"""Helpers for closing: one close for all callers, shielded work, and a warning if none was made."""

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
        await shielded(seen(task))


def shielded(future: asyncio.Future[T]) -> asyncio.Future[T]:
    """Return a future to await. If the caller is cancelled, `future` goes on, and logs no error.

    `asyncio.shield` would log an error that comes afterwards: as never retrieved, and from CPython
    3.14 on at once, by the exception handler of the event loop.
    """
    if future.done():
        return future
    outer = future.get_loop().create_future()  # awaiting it on another loop raises

    def pass_on(inner: asyncio.Future[T]) -> None:
        if outer.done():
            _retrieve(inner)
        elif inner.cancelled():
            outer.cancel()
        elif (error := inner.exception()) is not None:
            outer.set_exception(error)
            _retrieve(outer)  # its caller may be cancelled before its next step
        else:
            outer.set_result(inner.result())

    def let_go(_: asyncio.Future[T]) -> None:
        if not future.done():  # the caller was cancelled
            future.remove_done_callback(pass_on)
            future.remove_done_callback(_retrieve)  # one is enough for all callers
            future.add_done_callback(_retrieve)

    future.add_done_callback(pass_on)
    outer.add_done_callback(let_go)
    return outer


def seen(task: asyncio.Task[T]) -> asyncio.Task[T]:
    """Mark the outcome of a task as retrieved once it is done, also if no caller waits for it."""
    task.add_done_callback(_retrieve)
    return task


def _retrieve(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


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


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Await work to its end. A cancel of the caller takes effect afterwards."""
    task = seen(asyncio.get_running_loop().create_task(work))
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await shielded(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()
