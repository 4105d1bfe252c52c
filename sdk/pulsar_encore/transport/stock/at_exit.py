"""Ending native clients so that the interpreter can end after them; in a forked child, never.

Owns the order at exit, and what a fork leaves. A native thread that wants the interpreter lock
after finalization has begun is unwound by force through C++ and aborts the process, even when all
it does is to let go of a callback. So every client still open is closed at exit, and the native
side's last reference to each closing callback is waited for: from then on it has nothing of
Python's.

A forked child has copies of the native objects without their threads, over the parent's sockets.
One that is destroyed waits for a thread that is not there, or tells the broker to close what the
parent still uses. So in the child none of them ever is.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final
from weakref import WeakValueDictionary, finalize

from ...eventloop.process import at_end, keep_for_ever
from .cpp_calls import ignore

#: Longest wait at exit for a broker that does not answer, all clients together.
_EXIT_WAIT_S: Final = 2.0
_SHUTDOWN_WAIT_S: Final = 1.0

_open: dict[int, Any] = {}
_ending: dict[threading.Event, Any] = {}
_natives: WeakValueDictionary[int, Any] = WeakValueDictionary()  # by id: they are not hashable


class _Callback:
    """What the native client calls when it has closed; its deletion is what exit waits for."""

    __slots__ = ("_callback", "_released")

    def __init__(self, native: Any, done: Callable[..., None]) -> None:
        self._callback = done
        self._released = threading.Event()
        _ending[self._released] = native

    def __call__(self, *outcome: Any) -> None:
        self._callback(*outcome)

    def __del__(self) -> None:
        _ending.pop(self._released, None)
        self._released.set()


def watch(owner: object, native: Any, when: Callable[[Callable[[], None]], None]) -> None:
    """End `native` when its owner is collected, or at exit, unless `end` did before.

    Args:
        when: Calls what it is given as soon as the native client may be ended.
    """
    _open[id(native)] = keep_in_child(native)
    finalize(owner, when, partial(end_open, native)).atexit = False


def keep_in_child(native: Any) -> Any:
    """`native`, which is never destroyed in a child process that has it from its parent."""
    _natives[id(native)] = native
    return native


def _forget_in_child() -> None:
    for native in list(_natives.values()):
        keep_for_ever(native)
    _natives.clear()
    _open.clear()
    _ending.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


def end_open(native: Any) -> None:
    """`end`, unless that was done before."""
    if id(native) in _open:
        end(native)


def end(native: Any, done: Callable[..., None] = ignore) -> None:
    """Begin to close a native client; `done(result)` is called on one of its threads."""
    _open.pop(id(native), None)
    native.close_async(_Callback(native, done))


@at_end
def _end_all() -> None:
    for native in list(_open.values()):
        with contextlib.suppress(Exception):
            end(native)
    deadline = time.monotonic() + _EXIT_WAIT_S
    for released, native in list(_ending.items()):
        if not released.wait(max(0.0, deadline - time.monotonic())):
            with contextlib.suppress(Exception):  # no answer: stop the native threads instead
                native.shutdown()
            released.wait(_SHUTDOWN_WAIT_S)  # that answers, on a thread that must not outlive us
