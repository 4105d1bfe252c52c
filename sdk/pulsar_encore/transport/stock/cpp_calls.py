"""From native callbacks to awaitables: nothing thrown, nothing lost, nothing left hanging.

Owns the only functions handed to the C++ library as callbacks. They run on its threads, where an
exception ends the process (`docs/notes/cpp-client.md#callbacks`), so they swallow everything and
never block. An object that arrives after its caller was cancelled is closed, not orphaned. The
library forgets some callbacks when it closes; `CppCalls.abandon` settles those.
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

#: Begins a native operation: called with the callback to hand over.
Start = Callable[[Callable[..., None]], Any]


def ignore(*_outcome: Any) -> None:
    """The callback for operations whose end nobody waits for."""


def close_quietly(native: Any) -> None:
    """Close a native producer, consumer, reader or client that nobody has; never raises."""
    with contextlib.suppress(BaseException):
        native.close_async(ignore)


class CppCalls:
    """The native operations under way for one object."""

    def __init__(self) -> None:
        self._pending: dict[asyncio.Future[Any], str] = {}  # and what is being done
        self._abandoned = False

    async def run(
        self, start: Start, action: str, *, discard: Callable[[Any], None] | None = None
    ) -> Any:
        """Begin an operation and wait for its result.

        Args:
            start: Takes the callback.
            action: What is being done, for the text of an error.
            discard: Called with a result that nobody waits for any more, on any thread.

        Raises:
            ClosedError: Closed before or meanwhile.
            TransportError: It failed.
        """
        if self._abandoned:
            raise ClosedError(f"{action}: it is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        # A native reader keeps the callback that announced it; a callback that kept the future, and
        # so the reader, would keep both, and the threads of their client, for ever.
        future_cell = [future]
        log_start = engine_log.position()

        def done(*outcome: Any) -> None:
            outcome = _with_reason(outcome, log_start)
            try:
                loop.call_soon_threadsafe(_resolve, future_cell.pop(), outcome, discard)
            except BaseException:  # the loop is closed: nobody can wait for this any more
                _discard(outcome, discard)

        self._pending[future] = action  # first: it may be abandoned on another thread meanwhile
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
            await engine_log.delivered()
            raise
        except asyncio.CancelledError:
            # Cancelled in the very turn in which the result came: `_resolve` saw nobody gone.
            if future.done() and not future.cancelled() and future.exception() is None:
                _discard(future.result(), discard)
            raise
        finally:
            self._pending.pop(future, None)

    def abandon(self) -> None:
        """Fail what is under way, and what comes later, with `ClosedError`."""
        self._abandoned = True
        for future in list(self._pending):
            loop = future.get_loop()
            if loop is asyncio._get_running_loop():
                _abandon(future)
            else:
                with contextlib.suppress(RuntimeError):  # a closed loop has nobody who waits
                    loop.call_soon_threadsafe(_abandon, future)

    def fail_authentication(self, reason: str) -> None:
        """Fail the calls under way with an AuthenticationError; on any thread.

        The library still works on them. A call that succeeds later is given back (`discard`).
        """
        for future, action in list(self._pending.items()):
            error = own_authentication_failure(action, reason)
            with contextlib.suppress(RuntimeError):  # a closed loop has nobody who waits
                future.get_loop().call_soon_threadsafe(_fail, future, error)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _abandon(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(ClosedError("closed while the call was under way"))


class _RefusedResult(NamedTuple):
    """A `_pulsar.Result` with the broker's reason, as a `_pulsar.Error` has it."""

    error: Any
    message: str


def _with_reason(outcome: tuple[Any, ...], log_start: int) -> tuple[Any, ...]:
    """The outcome with the broker's reason, if there is one. In the callback; never raises."""
    first = outcome[0]
    if isinstance(first, _pulsar.Error):
        result, reason = first.error, first.message
    else:
        result, reason = first, ""
    if not isinstance(result, _pulsar.Result) or result == _pulsar.Result.Ok:
        return outcome
    try:
        if reason:
            engine_log.told(result.name, reason)
            return outcome
        return (_RefusedResult(result, engine_log.reason(result.name, log_start)),)
    except Exception:  # without a reason it is an error all the same
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
    """Native calls answer (Result), (Result, value), or (value or Error)."""
    first = outcome[0]
    if isinstance(first, (_pulsar.Error, _RefusedResult)):
        raise failure(first.error, action, first.message)
    if isinstance(first, _pulsar.Result):
        if first != _pulsar.Result.Ok:
            raise failure(first, action)
        return outcome[1] if len(outcome) > 1 else None
    return first


async def in_thread(blocking: Callable[[], Any], action: str) -> Any:
    """Run a native call that blocks, on another thread.

    Raises:
        TransportError: It failed.
    """
    try:
        return await asyncio.to_thread(blocking)
    except EncoreError:
        raise
    except Exception as error:
        raise raised(error, action) from error
