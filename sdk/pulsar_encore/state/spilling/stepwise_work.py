"""Long work in short steps.

A task is a generator. Between two of its yields it does a bounded step on the thread of the index.
`ThreadTasks` that it yields use no data of that thread, so an executor may run them to their end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError, Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

Steps: TypeAlias = "Generator[ThreadTasks | None, Any, None]"


@dataclass(frozen=True, slots=True)
class ThreadTasks:
    """Steps for another thread. The yield returns their result."""

    steps: Generator[None, None, Any]


class Tasks:
    """Running tasks by name.

    Args:
        executor: Runs `ThreadTasks`. With None, or after it was shut down, they run in `step`.
    """

    def __init__(
        self, executor: Executor | None, on_work: Callable[[], object] | None = None
    ) -> None:
        self._executor = executor
        self._on_work = on_work
        self._tasks: dict[str, _Task] = {}
        # Steps in the executor of tasks that were stopped.
        self._stopped_futures: list[Future[Any]] = []

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def __contains__(self, name: str) -> bool:
        return name in self._tasks

    def start(self, name: str, steps: Steps) -> None:
        """Add a task, without a first step. A task must handle its own errors."""
        assert name not in self._tasks
        idle = not self._tasks
        self._tasks[name] = _Task(steps)
        if idle and self._on_work is not None:
            self._on_work()

    def step(self) -> None:
        for name, task in list(self._tasks.items()):
            if not task.step(self._executor):
                self._tasks.pop(name, None)

    def finish(self) -> None:
        while self._tasks:
            for task in list(self._tasks.values()):
                task.wait()
            self.step()

    def stop(self) -> None:
        """Abort all tasks, without waiting for a step in the executor.

        That step is the last one of its task. It can be a write to disk that takes seconds, and the
        caller can be an event loop.
        """
        self._stopped_futures = [future for future in self._stopped_futures if not future.done()]
        for task in self._tasks.values():
            running = task.close()
            if running is not None:
                self._stopped_futures.append(running)
        self._tasks.clear()

    def wait(self) -> None:
        for future in self._stopped_futures:
            future.exception()

    def when_ended(self, call: Callable[[], object]) -> None:
        """Call a function when stopped tasks have ended, maybe on their thread."""
        running = next((future for future in self._stopped_futures if not future.done()), None)
        if running is None:
            call()
        else:
            running.add_done_callback(lambda _: self.when_ended(call))


class _Task:
    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._thread_steps: Generator[None, None, Any] | None = None  # the future runs them, too
        self._future: Future[Any] | None = None
        self._answer: Any = None
        self._error: BaseException | None = None
        self._stopped = False  # read by the other thread

    def step(self, executor: Executor | None) -> bool:
        if self._future is not None:
            if not self._future.done():
                return True
            future, self._future = self._future, None
            if future.cancelled():  # the executor was shut down: run the steps here
                return True
            self._thread_steps = None
            self._error = future.exception()
            self._answer = future.result() if self._error is None else None
        elif self._thread_steps is not None:
            try:
                next(self._thread_steps)
            except StopIteration as end:
                self._answer = end.value
            except Exception as error:  # thrown into the task below
                self._error = error
            else:
                return True
            self._thread_steps = None
        try:
            if self._error is not None:
                failed, self._error = self._error, None
                requested = self._steps.throw(failed)
            else:
                requested = self._steps.send(self._answer)
        except StopIteration:
            return False
        self._answer = None
        if requested is not None:
            self._thread_steps = requested.steps
            if executor is not None:
                with suppress(RuntimeError):  # the executor was shut down
                    self._future = executor.submit(self._run_to_end, requested.steps)
        return True

    def wait(self) -> None:
        if self._future is not None:
            with suppress(CancelledError):
                self._future.exception()

    def close(self) -> Future[Any] | None:
        """Abort the task. Return the future of a step that is running in the executor."""
        self._stopped = True
        future = self._future
        # A step that has not begun is cancelled: other indexes' work may be before it.
        started = future is not None and not future.cancel()
        if self._thread_steps is not None and not started:  # else `_run_to_end` closes it
            self._thread_steps.close()
        self._steps.close()
        return future if started else None

    def _run_to_end(self, steps: Generator[None, None, Any]) -> Any:
        while not self._stopped:
            try:
                next(steps)
            except StopIteration as end:
                return end.value
            time.sleep(0)  # give the GIL to a waiting event loop now, not after 5 ms
        steps.close()
        return None
