"""Ending native clients so that the interpreter can end after them.

Owns the order at exit. A native thread that wants the interpreter lock after finalization has begun
is unwound by force through C++ and aborts the process, even when all it does is to let go of a
callback. So every client still open is closed at exit, and the native side's last reference to each
closing callback is waited for: from then on it has nothing of Python's.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final
from weakref import finalize

from .results import ignore

#: Longest wait at exit for a broker that does not answer, all clients together.
_EXIT_WAIT_S: Final = 2.0

_open: dict[int, Any] = {}
_ending: dict[threading.Event, Any] = {}


class _Callback:
    """What the native client calls when it has closed; its deletion is what exit waits for."""

    __slots__ = ("_done", "_gone")

    def __init__(self, native: Any, done: Callable[..., None]) -> None:
        self._done = done
        self._gone = threading.Event()
        _ending[self._gone] = native

    def __call__(self, *outcome: Any) -> None:
        self._done(*outcome)

    def __del__(self) -> None:
        _ending.pop(self._gone, None)
        self._gone.set()


def watch(owner: object, native: Any, when: Callable[[Callable[[], None]], None]) -> None:
    """End `native` when its owner is collected, or at exit, unless `end` did before.

    Args:
        when: Calls what it is given as soon as the native client may be ended.
    """
    _open[id(native)] = native
    finalize(owner, when, partial(end_open, native)).atexit = False


def end_open(native: Any) -> None:
    """`end`, unless that was done before."""
    if id(native) in _open:
        end(native)


def end(native: Any, done: Callable[..., None] = ignore) -> None:
    """Begin to close a native client; `done(result)` is called on one of its threads."""
    _open.pop(id(native), None)
    native.close_async(_Callback(native, done))


@atexit.register
def _end_all() -> None:
    for native in list(_open.values()):
        with contextlib.suppress(Exception):
            end(native)
    deadline = time.monotonic() + _EXIT_WAIT_S
    for gone, native in list(_ending.items()):
        if not gone.wait(max(0.0, deadline - time.monotonic())):
            with contextlib.suppress(Exception):  # no answer: stop the native threads instead
                native.shutdown()
