"""Tasks that ignore their cancellation, at the end of an event loop.

`asyncio.run` cancels all tasks at its end and waits for them, without a limit. A handler that
catches CancelledError in a loop would therefore hold the process for ever. An abandoned task is
left out of that wait.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from contextvars import Context
from typing import Any, Final

from ..eventloop.process import at_exit, forget, keep_for_ever

_abandoned: Final[set[asyncio.Task[Any]]] = set()


def abandon(task: asyncio.Task[Any], started_there: Callable[[Context], bool]) -> None:
    """Let the event loop end without a task that has ignored its cancellation.

    The task runs on while the loop runs. `asyncio.all_tasks` no longer returns it.

    Args:
        task: A task that was cancelled and still runs.
        started_there: Returns True for the contexts of tasks that `task` has started. These tasks
            are abandoned too, because `task` may be waiting for them: on Python 3.11,
            `asyncio.wait_for` starts a task.
    """
    for other in asyncio.all_tasks(task.get_loop()):
        if other is not task and started_there(_context_of(other)):
            _leave(other)
    _leave(task)


def _leave(task: asyncio.Task[Any]) -> None:
    # asyncio documents this function for task implementations of third parties ("Extending
    # asyncio"). The function only removes the task from `all_tasks`, and `asyncio.run` waits for
    # the tasks in `all_tasks`. Every task is registered when it is made, and a handler without a
    # task could not use `asyncio.timeout`, task groups or anyio.
    asyncio._unregister_task(task)
    forget(task)
    # Without a reference, the closed loop would drop the task. Its coroutine would then get
    # GeneratorExit, and Python prints an error if a handler catches that as well.
    _abandoned.add(task)
    task.add_done_callback(_abandoned.discard)


@at_exit
def _keep() -> None:
    # The interpreter clears this module at its end, which would drop the tasks.
    for each in _abandoned:
        keep_for_ever(each)


def _context_of(task: asyncio.Task[Any]) -> Context:
    if hasattr(task, "get_context"):  # Python 3.12
        context: Context = task.get_context()
        return context
    # A task refers to its own context first, then to those of its callbacks.
    contexts = (each for each in gc.get_referents(task) if isinstance(each, Context))
    return next(contexts, Context())
