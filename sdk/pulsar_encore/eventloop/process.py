"""Hooks of the process: actions at the interpreter's exit, and the detection of forked children.

Exit handlers that the program registers after the import of this package run before the actions
given to `at_exit`.
"""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any, Final
from weakref import WeakSet

from ..errors import ForkedError

_PID: Final = os.getpid()
_background: Final[WeakSet[asyncio.Task[Any]]] = WeakSet()
_ends: Final = ExitStack()
atexit.register(_ends.close)


def at_exit(action: Callable[[], None]) -> Callable[[], None]:
    """Call `action` at the interpreter's exit; the last registered action runs first."""
    _ends.callback(action)
    return action


try:
    from ctypes import py_object, pythonapi
except ImportError:  # Python without ctypes: its exit may hang, or end by a signal

    def keep_for_ever(thing: object) -> None: ...

else:

    def keep_for_ever(thing: object) -> None:
        pythonapi.Py_IncRef(py_object(thing))


def in_background(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]
) -> asyncio.Task[None]:
    """Return a task for work that lasts until its owner is closed.

    In a forked child it never runs again, and asyncio does not warn when it is destroyed.
    """
    task = loop.create_task(work)
    _background.add(task)
    return task


def forget(task: asyncio.Future[Any]) -> None:
    """Suppress asyncio's warning when a task that never runs again is destroyed."""
    if isinstance(task, asyncio.Task):
        # asyncio's own helpers set this attribute; there is no public way.
        task._log_destroy_pending = False  # type: ignore[attr-defined]


def _in_child() -> None:
    for task in _background:
        forget(task)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def forked() -> bool:
    """Return True in a forked child of the process that imported this package."""
    return os.getpid() != _PID


def check_process(pid: int, what: str) -> None:
    """Raise ForkedError, which names the object (`what`), unless this is the process `pid`."""
    if os.getpid() != pid:
        raise ForkedError(
            f"this {what} was made by the parent process ({pid}), where its connection and its "
            "threads stayed: make a new Client in this one"
        )
