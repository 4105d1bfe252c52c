"""The process this package is in: whether it is a fork's child, and what is to be done at its end.

Owns both hooks of the interpreter from the moment the package is imported, for what is loaded only
later: the exit handlers that a program registers itself run before those given here, and a child
knows that it is one.
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


def at_end(action: Callable[[], None]) -> Callable[[], None]:
    """Have the interpreter's exit call `action`; what is registered last comes first."""
    _ends.callback(action)
    return action


try:
    from ctypes import py_object, pythonapi
except ImportError:  # built without: an exit may wait for what is not there, or end by a signal

    def keep_for_ever(thing: object) -> None: ...

else:

    def keep_for_ever(thing: object) -> None:
        """Never destroyed, not even at the interpreter's end."""
        pythonapi.Py_IncRef(py_object(thing))


def in_background(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]
) -> asyncio.Task[None]:
    """A task that waits until its owner is closed. In a child, where it never runs again and is
    dropped at the end, nothing is said about it."""
    task = loop.create_task(work)
    _background.add(task)
    return task


def forget(task: asyncio.Future[Any]) -> None:
    """Say nothing when a task that never runs again is dropped."""
    if isinstance(task, asyncio.Task):
        # As asyncio's own helpers tell a task that nobody has to be warned; it has no other way.
        task._log_destroy_pending = False  # type: ignore[attr-defined]


def _in_child() -> None:
    for task in _background:
        forget(task)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def forked() -> bool:
    """Whether this is a child process of the one that imported this package."""
    return os.getpid() != _PID


def check_process(pid: int, what: str) -> None:
    """
    Args:
        pid: Of the process that made it.
        what: What it is, for the text.

    Raises:
        ForkedError: This is another process.
    """
    if os.getpid() != pid:
        raise ForkedError(
            f"this {what} was made by the parent process ({pid}), where its connection and its "
            "threads stayed: make a new Client in this one"
        )
