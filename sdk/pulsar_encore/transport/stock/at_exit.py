"""Close native clients before the interpreter ends, and never in a forked child.

A native thread that wants the GIL after finalization has begun, even to release a Python callback,
is unwound by force through C++ and aborts the process. At exit this module therefore closes every
open client, and waits until the native side has dropped its last reference to each close callback.

A forked child keeps its copies of native objects: destroying one waits for a thread that only the
parent has, or closes the parent's object at the broker.
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

from ...eventloop.process import at_exit, keep_for_ever
from .cpp_calls import ignore

#: Longest wait at exit, for all clients together.
_EXIT_WAIT_S: Final = 2.0
_SHUTDOWN_WAIT_S: Final = 1.0

_open: dict[int, Any] = {}
_ending: dict[threading.Event, Any] = {}
# by id, because they are not hashable
_natives: WeakValueDictionary[int, Any] = WeakValueDictionary()


class _Callback:
    """The close callback of a native client. Its deletion ends the wait at exit."""

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


def watch(
    owner: object, native: Any, when: Callable[[Callable[[], None]], None], keep: object = None
) -> None:
    """Close `native` when its owner is collected or at exit, unless `end` has closed it before.

    Args:
        when: Takes an action, and calls it as soon as the native client may be closed.
        keep: Kept alive until then.
    """
    _open[id(native)] = keep_in_child(native)
    finalize(owner, when, partial(end_open, native, keep)).atexit = False


def keep_in_child(native: Any) -> Any:
    """Return `native`, which a forked child will never destroy."""
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


def end_open(native: Any, keep: object = None) -> None:
    """Close a native client unless `end` was called for it."""
    if id(native) in _open:
        end(native)


def end(native: Any, done: Callable[..., None] = ignore) -> None:
    """Begin to close a native client; `done(result)` is called on one of its threads."""
    _open.pop(id(native), None)
    native.close_async(_Callback(native, done))


@at_exit
def _end_all() -> None:
    for native in list(_open.values()):
        with contextlib.suppress(Exception):
            end(native)
    deadline = time.monotonic() + _EXIT_WAIT_S
    for released, native in list(_ending.items()):
        if not released.wait(max(0.0, deadline - time.monotonic())):
            with contextlib.suppress(Exception):  # no answer: stop the native threads instead
                native.shutdown()
            # `shutdown` calls back on a native thread, which must end before the process
            released.wait(_SHUTDOWN_WAIT_S)
