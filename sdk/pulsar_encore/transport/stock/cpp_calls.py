"""Turn native callbacks into awaitables.

The callbacks run on threads of the C++ client, where an exception ends the process
(`docs/notes/cpp-client.md#callbacks`): they catch everything and never block. The C++ client drops
some callbacks when it closes; `CppCalls.abandon` fails their calls.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import _pulsar

from ...errors import ClosedError, EncoreError, TransportError
from .cpp_log import engine_log
from .result_errors import failure, own_authentication_failure, raised

#: Begins a native operation with the callback that it is given.
Start = Callable[[Callable[..., None]], Any]


def ignore(*_outcome: Any) -> None:
    """Do nothing: the callback for operations without a waiter."""


def close_quietly(native: Any) -> None:
    """Close a native object without an owner."""
    with contextlib.suppress(BaseException):
        native.close_async(ignore)


class CppCalls:
    """The pending native operations of one object."""

    def __init__(self) -> None:
        self._pending: dict[asyncio.Future[Any], str] = {}
        self._abandoned = False

    async def run(
        self, start: Start, action: str, *, discard: Callable[[Any], None] | None = None
    ) -> Any:
        """Begin an operation and wait for its result. `action` is its name in error texts.

        `discard` is called on any thread with a result that arrives after the caller was cancelled.
        """
        if self._abandoned:
            raise ClosedError(f"{action}: it is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        # A native reader keeps the callback of its creation for ever. Without the emptied cell the
        # callback would keep the future, the reader, and the threads of its client.
        future_cell = [future]
        log_start = engine_log.position()

        def done(*outcome: Any) -> None:
            outcome = _with_reason(outcome, log_start)
            try:
                loop.call_soon_threadsafe(_resolve, future_cell.pop(), outcome, discard)
            except BaseException:  # the loop is closed, so no caller waits
                _discard(outcome, discard)

        self._pending[future] = action  # before `start`: another thread may call `abandon`
        try:
            start(done)
        except Exception as error:
            self._pending.pop(future, None)
            raise raised(error, action) from error
        if self._abandoned:
            _abandon(future)
        try:
            return _result_of(await future, action)
        except TransportError:
            await engine_log.wait_until_delivered()
            raise
        except asyncio.CancelledError:
            # Cancelled in the loop pass in which the result arrived: `_resolve` did not see it.
            if future.done() and not future.cancelled() and future.exception() is None:
                _discard(future.result(), discard)
            raise
        finally:
            self._pending.pop(future, None)

    def abandon(self) -> None:
        """Fail all pending and later calls with `ClosedError`."""
        self._abandoned = True
        for future in list(self._pending):
            loop = future.get_loop()
            if loop is asyncio._get_running_loop():
                _abandon(future)
            else:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(_abandon, future)

    def fail_authentication(self, reason: str) -> None:
        """Fail the pending calls with an AuthenticationError, on any thread.

        A result that arrives later goes to `discard`.
        """
        for future, action in list(self._pending.items()):
            error = own_authentication_failure(action, reason)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                future.get_loop().call_soon_threadsafe(_fail, future, error)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _abandon(future: asyncio.Future[Any]) -> None:
    _fail(future, ClosedError("closed while the call was under way"))


class _RefusedResult(NamedTuple):
    """A `_pulsar.Result` with the broker's reason, like a `_pulsar.Error`."""

    error: Any
    message: str


def _with_reason(outcome: tuple[Any, ...], log_start: int) -> tuple[Any, ...]:
    """Add the broker's reason to an outcome. Never raises."""
    first = outcome[0]
    if isinstance(first, _pulsar.Error):
        result, reason = first.error, first.message
    else:
        result, reason = first, ""
    if not isinstance(result, _pulsar.Result) or result == _pulsar.Result.Ok:
        return outcome
    try:
        if reason:
            engine_log.forget_reason(result.name, reason)
            return outcome
        return (_RefusedResult(result, engine_log.reason(result.name, log_start)),)
    except Exception:  # report the error without a reason
        return outcome


def _resolve(
    future: asyncio.Future[Any], outcome: tuple[Any, ...], discard: Callable[[Any], None] | None
) -> None:
    if future.done():
        _discard(outcome, discard)
    else:
        future.set_result(outcome)


def _discard(outcome: tuple[Any, ...], discard: Callable[[Any], None] | None) -> None:
    if discard is None:
        return
    with contextlib.suppress(BaseException):
        discard(_result_of(outcome, ""))


def _result_of(outcome: tuple[Any, ...], action: str) -> Any:
    """Return the value of an outcome: (Result), (Result, value), or (value or Error)."""
    first = outcome[0]
    if isinstance(first, (_pulsar.Error, _RefusedResult)):
        raise failure(first.error, action, first.message)
    if isinstance(first, _pulsar.Result):
        if first != _pulsar.Result.Ok:
            raise failure(first, action)
        return outcome[1] if len(outcome) > 1 else None
    return first


async def in_thread(blocking: Callable[[], Any], action: str) -> Any:
    """Run a blocking native call on another thread."""
    try:
        return await asyncio.to_thread(blocking)
    except EncoreError:
        raise
    except Exception as error:
        raise raised(error, action) from error
