"""Work that goes on when its caller is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


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
