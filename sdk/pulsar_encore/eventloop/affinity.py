"""Which event loop and process an object belongs to, and the end of a loop.

Owns `LoopAffinity`, `LoopEnd`, `cancel` and `end_all`. A consumer, a reader or a producer keeps
timers, waiters and an order of events on the loop it was made on. Called from another one it would
wait for answers that go elsewhere, or send and then fail; in a forked child its connection and its
threads are not there at all. So every call looks where it is before it does anything; on its own
loop that costs one comparison.
"""

from __future__ import annotations

import asyncio
import os
from asyncio import _get_running_loop as running_loop
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from threading import get_ident
from typing import Any
from weakref import WeakSet

from ..errors import ConfigurationError, WrongLoopError
from .process import check_process, forget

__all__ = ["LoopAffinity", "LoopEnd", "cancel", "end_all", "get_ident", "running_loop"]


class _Asked:
    """For loops that don't say on which thread they run, such as uvloop's."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    @property
    def _thread_id(self) -> int | None:
        return get_ident() if running_loop() is self._loop else None


class _NoLoop:
    _thread_id = None


class LoopAffinity:
    """The running loop and this process.

    Before anything else a call does::

        if place.runner._thread_id != get_ident():
            place.check()

    which is `running_loop() is not place.loop` without the system call that this makes in Python
    3.11, of which two for each message cost a third of what receiving and settling it does.

    Args:
        what: What belongs here, for the text of an error, such as "consumer".

    Attributes:
        runner: Has the thread's identity in `_thread_id` while the loop runs there, as the loops of
            asyncio have.
    """

    __slots__ = ("__weakref__", "_pid", "_what", "loop", "runner")

    def __init__(self, what: str) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.runner: Any = self.loop if hasattr(self.loop, "_thread_id") else _Asked(self.loop)
        self._pid = os.getpid()
        self._what = what
        _places.add(self)

    def check(self) -> None:
        """
        Raises:
            ForkedError: In a child of the process it was made in.
            WrongLoopError: On another loop, or on none.
        """
        if self.runner._thread_id != get_ident():
            raise self._refusal()

    def check_process(self) -> None:
        """
        Raises:
            ForkedError: In a child of the process it was made in.
        """
        check_process(self._pid, self._what)

    @property
    def over(self) -> bool:
        """Its loop is closed: nothing it waits for can happen any more."""
        return self.loop.is_closed()

    def moved(self) -> LoopAffinity:
        """The same on the loop that runs now, for what keeps nothing on its own.

        Raises:
            ForkedError: In a child of the process it was made in.
            RuntimeError: No loop runs.
        """
        check_process(self._pid, self._what)
        return LoopAffinity(self._what)

    def _refusal(self) -> ConfigurationError:
        self.check_process()
        if self.over:
            how = (
                "made on an event loop that is closed by now: make it anew on the one in use, as "
                "each asyncio.run() has its own loop; the client may be kept"
            )
        elif running_loop() is None:
            how = (
                "called without its event loop running: await it there; from another thread use "
                "asyncio.run_coroutine_threadsafe(...) or loop.call_soon_threadsafe(...)"
            )
        else:
            how = (
                "made on another event loop: call it there "
                "(asyncio.run_coroutine_threadsafe), or make another from the same client here"
            )
        return WrongLoopError(f"this {self._what} was {how}")


class LoopEnd:
    """Awaits a call at the end of the running event loop, while the loop can still do I/O.

    `asyncio.run`, `asyncio.Runner` and `uvloop.run` shut down the asynchronous generators of a loop
    (`loop.shutdown_asyncgens`) before they close it. That is the only public notice of a loop's
    end, so a generator waits for it. A loop that is closed without it gives no notice.

    Args:
        ended: Called once, on that loop, and awaited.
    """

    def __init__(self, ended: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._ended: Callable[[], Coroutine[Any, Any, None]] | None = ended
        self._waiting = self._wait()
        _step(self._waiting.__anext__())
        _loop_ends.add(self)

    async def _wait(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            ended, self._ended = self._ended, None
            if ended is not None:
                await ended()

    def cancel(self) -> None:
        """Call nothing; on any thread, also if the loop is closed."""
        self._ended = None
        try:
            _step(self._waiting.aclose())
        except RuntimeError:
            pass  # the call is under way


def _step(once: Awaitable[None]) -> None:
    """Run one step of an awaitable that never suspends."""
    try:
        once.__await__().__next__()
    except (StopIteration, StopAsyncIteration):
        pass


def cancel(task: asyncio.Future[Any]) -> None:
    """Cancel a task or future, if its event loop is not closed: on a closed loop it never goes on,
    and `cancel` would raise RuntimeError."""
    if task.get_loop().is_closed():
        forget(task)
    else:
        task.cancel()


def end_all(loop: asyncio.AbstractEventLoop | None, *calls: Callable[[], object]) -> None:
    """Run every cleanup call, even if one of them fails.

    Args:
        loop: The loop that the calls belong to, if it is one. If it is closed, a RuntimeError of a
            call is no failure: whoever waits on that loop cannot be told, and never goes on.

    Raises:
        Exception: The first failure, after all calls.
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


_places: WeakSet[LoopAffinity] = WeakSet()
_loop_ends: WeakSet[LoopEnd] = WeakSet()


def _in_child() -> None:
    # A fork in a running loop leaves the child with a loop that looks as if it ran.
    for affinity in list(_places):
        affinity.runner = _NoLoop
    for each in list(_loop_ends):
        each.cancel()  # the child's exit would try to run it on the parent's loop


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
