"""Daemon threads for handlers that are plain functions.

The threads of an executor are joined at the end of the process, so a handler in `time.sleep(60)`
would hold the process for a minute after its drain. Daemon threads end with the process.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextvars import Context, copy_context
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple

#: Seconds that an idle thread waits for its next call before it ends.
IDLE_S: Final = 30.0

_numbers: Final = count(1)


class _Call(NamedTuple):
    context: Context
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    result: asyncio.Future[Any]


async def run_in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function in a daemon thread, with a copy of the current context.

    If the caller is cancelled, the function continues to its end and its result is discarded.
    """
    result = asyncio.get_running_loop().create_future()
    call = _Call(copy_context(), function, arguments, result)
    try:
        thread = _idle.pop()  # the last one used, so that the other threads can end
    except IndexError:
        thread = _HandlerThread()
        thread.start()
    thread.calls.put(call)
    return await result


class _HandlerThread(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name=f"pulsar-encore-handler-{next(_numbers)}", daemon=True)
        self.calls: SimpleQueue[_Call] = SimpleQueue()

    def run(self) -> None:
        while True:
            try:
                call = self.calls.get(timeout=IDLE_S)
            except Empty:
                try:
                    _idle.remove(self)
                except ValueError:  # taken from the list just now: its call is about to arrive
                    continue
                return
            self._serve(call)
            del call  # the arguments of a call do not stay alive while its thread is idle

    def _serve(self, call: _Call) -> None:
        value: Any = None
        error: BaseException | None = None
        try:
            value = call.context.run(call.function, *call.arguments)
        except StopIteration as stop:
            # A future refuses StopIteration. A coroutine that raises it gives this error too.
            error = RuntimeError("the handler raised StopIteration")
            error.__cause__ = stop
        except BaseException as raised:
            error = raised
        # First, so that the next call of the event loop finds this thread.
        _idle.append(self)
        try:
            call.result.get_loop().call_soon_threadsafe(_deliver, call.result, value, error)
        except RuntimeError:
            pass  # the event loop is closed, and no task waits for the result
        del error  # its traceback refers to this frame


def _deliver(result: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if result.done():
        return  # the caller was cancelled
    if error is not None:
        result.set_exception(error)
    else:
        result.set_result(value)


_idle: Final[list[_HandlerThread]] = []

if hasattr(os, "register_at_fork"):
    # A forked child has no threads.
    os.register_at_fork(after_in_child=_idle.clear)
