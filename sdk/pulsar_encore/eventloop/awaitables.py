"""Awaitables that calls of this package return instead of a plain coroutine.

`acknowledge` and its siblings act when they are called, awaited or not. asyncio takes all of them
for coroutines: `create_task`, `gather` and `wait_for` accept them.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import inspect
import logging
import sys
import warnings
from collections.abc import Callable, Coroutine, Generator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, Self, TypeVar, cast

from .fair_yield import FairYield
from .shielded_work import seen, shielded

logger: logging.Logger = logging.getLogger(__name__)

_F = TypeVar("_F", bound=Callable[..., Any])

if TYPE_CHECKING:

    class Settling(Coroutine[Any, Any, None]):
        """The result of settling a message, which nobody has to await.

        A type checker warns about a Coroutine that is not awaited, but not about this class.
        """
else:
    Settling = Coroutine


class _HasActed:
    __slots__ = ()

    def send(self, value: Any) -> Any:
        raise StopIteration  # a task made of it has nothing left to do

    def throw(self, typ: Any, val: Any = None, tb: Any = None) -> Any:
        raise typ if val is None else val

    def close(self) -> None:
        """Do nothing."""


class Done(_HasActed, asyncio.Future[None]):
    """The result of a call that has acted; one instance for all calls of an object.

    It is a future, because awaiting a future that is done costs almost nothing.
    """

    # With None here `asyncio.isfuture` returns False, so that `ensure_future` makes a task.
    _asyncio_future_blocking: Any = None

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self.set_result(None)


Coroutine.register(Done)


class DoneByLast(_HasActed, Coroutine[Any, Any, None]):
    """As `Done`, for a call that used up its time slice: awaiting it lets the event loop run."""

    __slots__ = ("_fair_yield",)

    def __init__(self, fair_yield: FairYield) -> None:
        self._fair_yield = fair_yield

    def __await__(self) -> Generator[Any, Any, None]:
        return self._fair_yield.end().__await__()


class Failing(asyncio.Future[None]):
    """The result of a call that failed. Awaiting it raises the error.

    If nobody awaits it, asyncio logs the error as never retrieved. A caller that is cancelled
    before it awaits has given up, and nothing is logged.
    """

    _asyncio_future_blocking: Any = None  # as with `Done`

    def __init__(self, error: Exception, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self.set_exception(error)

    @property
    def is_seen(self) -> bool:
        """True if the error was raised to a caller."""
        return not self._log_traceback

    def send(self, value: Any) -> Any:
        self.result()

    def throw(self, typ: Any, val: Any = None, tb: Any = None) -> Any:
        self.exception()  # a task that is cancelled before its first step calls only this
        raise typ if val is None else val

    def close(self) -> None:
        """Mark the error as retrieved: the caller gave up."""
        self.exception()


Coroutine.register(Failing)


def raise_failure(call: object) -> None:
    """Raise the error of a call that has failed, for a caller that does not await its result."""
    if isinstance(call, Failing):
        call.result()


class _Stepped(Coroutine[Any, Any, None]):
    __slots__ = ("_steps",)

    def __init__(self) -> None:
        self._steps: Generator[Any, Any, None] | None = None

    def _begun(self) -> Generator[Any, Any, None]:
        if self._steps is None:
            self._steps = self.__await__()
        return self._steps

    def send(self, value: Any) -> Any:
        return self._begun().send(value)

    def throw(self, typ: Any, val: Any = None, tb: Any = None) -> Any:
        return self._begun().throw(typ if val is None else val)

    def close(self) -> None:
        if self._steps is not None:
            self._steps.close()


class InProgress(_Stepped):
    """The result of a call that works on in a task. Cancelling its caller leaves the task."""

    __slots__ = ("task",)

    def __init__(self, task: asyncio.Task[None]) -> None:
        super().__init__()
        self.task: asyncio.Task[None] = task

    def __await__(self) -> Generator[Any, Any, None]:
        return shielded(self.task).__await__()

    def throw(self, typ: Any, val: Any = None, tb: Any = None) -> Any:
        seen(self.task)  # the caller was cancelled before it awaited
        return super().throw(typ, val, tb)

    def close(self) -> None:
        seen(self.task)
        super().close()


class AwaitingReceipt(_Stepped):
    """The result of a call that has acted. Awaiting it waits for ack receipts.

    Calls share the futures, so cancelling the caller leaves them.
    """

    __slots__ = ("futures",)

    def __init__(self, futures: Sequence[asyncio.Future[None]]) -> None:
        super().__init__()
        self.futures: Sequence[asyncio.Future[None]] = futures

    def __await__(self) -> Generator[Any, Any, None]:
        for future in self.futures:
            yield from shielded(future).__await__()


class HandedToLoop(_Stepped):
    """The result of a call from a thread without an event loop, which runs on its object's loop."""

    __slots__ = ("_outcome", "_watched")

    def __init__(self, outcome: concurrent.futures.Future[None]) -> None:
        super().__init__()
        self._outcome = outcome
        self._watched = False

    def __await__(self) -> Generator[Any, Any, None]:
        self._watched = True
        return asyncio.wrap_future(self._outcome).__await__()

    def __del__(self) -> None:
        if not self._watched:
            self._outcome.add_done_callback(_tell_unwatched)


def _tell_unwatched(outcome: concurrent.futures.Future[None]) -> None:
    if not outcome.cancelled() and (error := outcome.exception()) is not None:
        logger.error("a call from another thread failed: %s", error, exc_info=error)


class _Entered(Protocol):
    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...


_P = ParamSpec("_P")
_Opened = TypeVar("_Opened", bound=_Entered)
_T_co = TypeVar("_T_co", bound=_Entered, covariant=True)


class Opening(Coroutine[Any, Any, _T_co]):
    """The result of a call that opens an object. ``async with`` also closes it at the end."""

    __slots__ = ("_coroutine", "_opened")

    def __init__(self, coroutine: Coroutine[Any, Any, _T_co]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, _T_co]:
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        if value is not None:  # the caller wanted to send with a producer
            raise TypeError(self._not_awaited("send"))
        return self._coroutine.send(value)

    def throw(self, typ: Any, val: Any = None, tb: Any = None) -> Any:
        return self._coroutine.throw(typ if val is None else val)

    def close(self) -> None:
        if inspect.getcoroutinestate(self._coroutine) == inspect.CORO_CREATED:
            warnings.warn(self._not_awaited("close"), RuntimeWarning, stacklevel=2)
        self._coroutine.close()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(self._not_awaited(name))

    def _not_awaited(self, name: str) -> str:
        call = getattr(self._coroutine, "__qualname__", "it")
        return f"{call}() was never awaited, so there is no {name!r} yet: await it, or `async with`"

    async def __aenter__(self) -> _T_co:
        opened = await self._coroutine
        self._opened = opened
        return await opened.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._opened.__aexit__(kind, error, trace)


def opening(
    function: Callable[_P, Coroutine[Any, Any, _Opened]],
) -> Callable[_P, Opening[_Opened]]:
    @returns_coroutine
    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> Opening[_Opened]:
        return Opening(function(*args, **kwargs))

    return call


def returns_coroutine(function: _F) -> _F:
    """Mark a function that returns one of these awaitables as a coroutine function, for mocks."""
    if sys.version_info >= (3, 12):
        return inspect.markcoroutinefunction(function)
    function._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]
    return function


def settles(
    function: Callable[_P, Coroutine[Any, Any, None]],
) -> Callable[_P, Settling]:
    return returns_coroutine(cast("Callable[_P, Settling]", function))
