"""The event loop and process that an object belongs to, and the end of an event loop.

A call from another loop would wait for answers that arrive on the loop of the object. A forked
child has neither the connections nor the threads. Every call therefore checks its loop first.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio import _get_running_loop as running_loop
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from functools import partial
from threading import get_ident
from typing import Any
from weakref import WeakSet, ref

from ..errors import ConfigurationError, WrongLoopError
from .process import check_process, forget

__all__ = ["LoopAffinity", "LoopEnd", "cancel", "end_all", "get_ident", "running_loop"]


class LoopAffinity:
    """The running event loop and the current process, as the owners of an object.

    Calls that are made for each message check it inline::

        if affinity.thread != get_ident():
            affinity.check()

    Args:
        kind: The kind of the object, such as "consumer", for errors.

    Attributes:
        thread: The identifier of the thread in which the loop runs; None if it is not known.
            `check` and `is_here` determine it again.
    """

    # `running_loop() is affinity.loop` alone would do, but Python 3.11 makes a system call for it:
    # 180 ns for each call, where comparing two thread identifiers takes 40 ns.
    #
    # Two loops can run in a thread one after the other, so `thread` becomes None when the loop
    # stops. While a loop of asyncio or uvloop runs, it installs a hook for asynchronous generators
    # (`sys.set_asyncgen_hooks`), a bound method that ceases to exist when the loop stops. A weak
    # reference to it reports the stop. With a loop without such a hook, `thread` stays None, and
    # every call asks for the running loop. If a debugger keeps the hook alive, calls from the next
    # loop fail with asyncio's own error ("attached to a different loop").

    __slots__ = ("__weakref__", "_hook", "_kind", "_pid", "loop", "thread")

    def __init__(self, kind: str) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.thread: int | None = None
        self._hook: ref[Any] | None = None
        self._pid = os.getpid()
        self._kind = kind
        self._remember_thread()
        _affinities.add(self)

    def _remember_thread(self) -> None:
        hook = sys.get_asyncgen_hooks().firstiter
        if getattr(hook, "__self__", None) is self.loop:
            self._hook = ref(hook, partial(_forget_thread, ref(self)))
            self.thread = get_ident()

    def is_here(self) -> bool:
        """Return True if the caller is on the loop, in the process that created this object."""
        if self.thread == get_ident():
            return True
        if running_loop() is not self.loop or os.getpid() != self._pid:
            return False
        self._remember_thread()
        return True

    def check(self) -> None:
        if not self.is_here():
            raise self._wrong_loop_error()

    def check_process(self) -> None:
        check_process(self._pid, self._kind)

    @property
    def loop_is_closed(self) -> bool:
        return self.loop.is_closed()

    def to_running_loop(self) -> LoopAffinity:
        """Return the affinity to the running loop, for an object without state on its own loop."""
        self.check_process()
        return LoopAffinity(self._kind)

    def _wrong_loop_error(self) -> ConfigurationError:
        self.check_process()
        if self.loop_is_closed:
            reason = (
                "made on an event loop that is closed by now: create it again on the running "
                "loop, because each asyncio.run() has its own loop. The client can be kept"
            )
        elif running_loop() is None:
            reason = (
                "called without its event loop running: await it there; from another thread use "
                "asyncio.run_coroutine_threadsafe(...) or loop.call_soon_threadsafe(...)"
            )
        else:
            reason = (
                "made on another event loop: call it there "
                "(asyncio.run_coroutine_threadsafe), or create another from the same client here"
            )
        return WrongLoopError(f"this {self._kind} was {reason}")


class LoopEnd:
    """Awaits `on_end` once at the end of the running event loop, while the loop can still do I/O.

    `asyncio.run`, `asyncio.Runner` and `uvloop.run` shut down the asynchronous generators of a loop
    (`loop.shutdown_asyncgens`) before they close it, so a generator waits for that. There is no
    other public notice. A loop that is closed in another way gives none.
    """

    def __init__(self, on_end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._on_end: Callable[[], Coroutine[Any, Any, None]] | None = on_end
        self._generator = self._wait()
        _run_one_step(self._generator.__anext__())
        _loop_ends.add(self)

    async def _wait(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            on_end, self._on_end = self._on_end, None
            if on_end is not None:
                await on_end()

    def cancel(self) -> None:
        """Do not call `on_end`. Works on any thread, and after the loop was closed."""
        self._on_end = None
        try:
            _run_one_step(self._generator.aclose())
        except RuntimeError:
            pass  # `on_end` is running


def _run_one_step(awaitable: Awaitable[None]) -> None:
    try:
        awaitable.__await__().__next__()
    except (StopIteration, StopAsyncIteration):
        pass


def cancel(task: asyncio.Future[Any]) -> None:
    """Cancel a task, unless its event loop is closed: `cancel` would raise RuntimeError then."""
    if task.get_loop().is_closed():
        forget(task)
    else:
        task.cancel()


def end_all(loop: asyncio.AbstractEventLoop | None, *calls: Callable[[], object]) -> None:
    """Run every cleanup call, even if one of them fails; then raise the first failure.

    If `loop` is closed, a RuntimeError of a call is ignored: tasks that wait on that loop never
    continue, so they cannot be notified.
    """
    failure: Exception | None = None
    for call in calls:
        try:
            call()
        except Exception as error:
            is_closed = loop is not None and loop.is_closed()
            if not (is_closed and isinstance(error, RuntimeError)):
                failure = failure or error
    if failure is not None:
        raise failure


def _forget_thread(affinity_ref: ref[LoopAffinity], _: object) -> None:
    affinity = affinity_ref()
    if affinity is not None:
        affinity.thread = None


_affinities: WeakSet[LoopAffinity] = WeakSet()
_loop_ends: WeakSet[LoopEnd] = WeakSet()


def _reset_in_child() -> None:
    # After a fork in a running loop, the loop seems to run in the child too, in a thread with the
    # same identifier.
    for affinity in list(_affinities):
        affinity.thread = None
    for each in list(_loop_ends):
        each.cancel()  # the child's exit would try to run it on the parent's loop


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)
