"""Concurrent handler calls with timeouts and cancellation.

Each call is a task of its own. The alternative is one long-lived task per slot that drives the
handler's coroutine with ``context.run(coro.send, ...)``. Measured with handlers that await once
(CPython 3.11, 32 slots), a call costs 4.1 us as a task of its own and 2.6 us in a slot's task, and
a message costs several times as much in all. The task is worth the difference:

- `asyncio.current_task` differs between messages. Libraries keep a session for each task
  (SQLAlchemy with ``scopefunc=asyncio.current_task``), and two messages must not share one.
- A library that cancels the task too late does not cancel the handler of the next message.
- An idle worker has no tasks at all.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Generator, Hashable
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from types import coroutine
from typing import Any, Final, Generic, TypeAlias, TypeVar

from ..eventloop.alarm import Alarm, clock_of
from ..eventloop.shielded_work import seen
from .abandoned_tasks import abandon
from .loop_watchdog import LoopWatchdog

#: The reason of `Returned` and `Raised` if a handler ended after its timeout.
TIMEOUT: Final = "timeout"
#: The reason of `Cancelled` if the task was cancelled by other code than `Slots`.
OUTSIDE: Final = "outside"
#: Seconds from a cancellation until the handler counts as stuck.
STUCK_AFTER_S: Final = 5.0
# `asyncio.run` cancels all tasks at its end. A call that started then would never be cancelled, so
# a slot that was cancelled from outside waits this long for its next job.
_AFTER_OUTSIDE_S: Final = 1.0

J = TypeVar("J", bound=Hashable)


# These are made for each message. A frozen dataclass would take three times as long.
@dataclass(slots=True)
class Returned:
    """The handler returned `value`. With a `reason` it was cancelled before, and did not stop."""

    value: Any
    reason: str | None = None


@dataclass(slots=True)
class Raised:
    """The handler raised `error`. With a `reason` it was cancelled before.

    A CancelledError without a reason comes from the handler itself, such as from a future that was
    cancelled.
    """

    error: BaseException
    reason: str | None = None


@dataclass(slots=True)
class TimedOut:
    """The handler was cancelled at its deadline, and ended."""


@dataclass(slots=True)
class Cancelled:
    """The handler was cancelled, and ended. It may not have begun."""

    reason: str


Result: TypeAlias = Returned | Raised | TimedOut | Cancelled


class _Call:
    # Defaults of the class, because a call is made for each message and most of them keep these.
    reason: str | None = None
    cancelled_s = math.inf
    is_requested = False  # `cancel` of the task was called once
    task: asyncio.Task[None] | None = None

    def __init__(self, job: Any, started_s: float, deadline_s: float) -> None:
        self.job = job
        self.started_s = started_s
        self.deadline_s = deadline_s  # of its timeout; once it is cancelled, of being stuck


# The call of the current context. Tasks and threads that a handler starts inherit it.
_call: ContextVar[_Call | None] = ContextVar("pulsar_encore_call", default=None)


def current_job() -> Any:
    """Return the job whose handler runs in the current context, or None outside a handler."""
    call = _call.get()
    return None if call is None else call.job


class Slots(Generic[J]):
    """Runs up to `size` handlers at a time.

    Args:
        size: The number of calls that run at a time.
        next_job: Returns the next job, or None if no job is ready. It may call `wake`.
        run: Calls the handler of a job, in a context of its own.
        finished: Called with the job and its result, in the context of the call. The slot is free
            by then. The next job starts in the same step of the event loop.
        timeout: Seconds until a handler is cancelled, or None.
        cancellable: Returns False if handlers cannot be cancelled, because they run in threads.
            A timeout or a cancellation is then only reported as the `reason` of the result.
        stuck: Called once for each handler that still runs `STUCK_AFTER_S` after its
            cancellation, with the job and the reason of the cancellation.
        watchdog: Told when handlers run.
        name: The name of the tasks.
    """

    def __init__(
        self,
        size: int,
        next_job: Callable[[], J | None],
        run: Callable[[J], Awaitable[Any]],
        finished: Callable[[J, Result], None],
        *,
        timeout: float | None = None,
        cancellable: Callable[[], bool] = lambda: True,
        stuck: Callable[[J, str], None] = lambda job, reason: None,
        watchdog: LoopWatchdog | None = None,
        name: str = "pulsar-encore handler",
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = clock_of(self._loop)
        self._size = size
        self._next_job = next_job
        self._run = run
        self._finished = finished
        self._timeout_s = math.inf if timeout is None else timeout
        self._cancellable = cancellable
        self._stuck = stuck
        self._watchdog = watchdog
        self._name = name
        self._running: dict[J, _Call] = {}
        self._abandoned: list[asyncio.Task[None]] = []
        self._context = copy_context()
        self._filling = False
        self._stopped = False
        self._emptied: asyncio.Future[None] | None = None
        self._alarm_s = math.inf  # the alarm is set for this time or an earlier one
        self._alarm = Alarm(self._loop)
        self._alarm.start(self._ring)

    # Calls

    def wake(self) -> None:
        """Start jobs in the free slots. Call this whenever `next_job` may return another job."""
        if self._filling:
            return  # called by `next_job`: the loop below asks again
        self._filling = True
        try:
            while len(self._running) < self._size and not self._stopped:
                job = self._next_job()
                if job is None:
                    return
                self._start(job)
        finally:
            self._filling = False

    def _start(self, job: J) -> None:
        now = self._clock()
        call = _Call(job, now, now + self._timeout_s)
        if not self._running and self._watchdog is not None:
            self._watchdog.enter()
        self._running[job] = call
        if call.deadline_s < self._alarm_s:
            self._set_alarm(call)
        steps = self._steps(call)
        # A task that is cancelled before its first step never enters its coroutine, and would
        # report no result. So the coroutine is inside its `try` before the task is made.
        steps.send(None)
        # A context of its own: the current one may belong to the message before.
        call.task = self._loop.create_task(steps, name=self._name, context=self._context.copy())
        if call.reason is not None and job in self._running:
            self._request(call)  # an eager task has cancelled itself in its first step

    async def _steps(self, call: _Call) -> None:
        fatal: BaseException | None = None
        is_outside = False
        try:
            await _first_step()
            _call.set(call)
            value = await self._run(call.job)
            result: Result = Returned(value, call.reason)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            # More requests than ours: another one, such as the end of `asyncio.run`. No `uncancel`
            # is needed, because the task ends here.
            is_outside = task is not None and task.cancelling() > call.is_requested
            if call.reason == TIMEOUT:
                result = TimedOut()
            elif call.reason is not None:
                result = Cancelled(call.reason)
            elif is_outside:
                result = Cancelled(OUTSIDE)
            else:
                result = Raised(error)
        except GeneratorExit:
            raise  # the loop is closed, and the coroutine is being freed
        except (KeyboardInterrupt, SystemExit) as error:
            result = Raised(error, call.reason)
            fatal = error
        except BaseException as error:
            result = Raised(error, call.reason)
        self._end(call, result)
        # The traceback of an error refers to this frame. Without a cycle it is freed at once.
        del result
        if fatal is not None:
            if call.task is not None:
                seen(call.task)  # the event loop raises the error, and need not log it
            try:
                raise fatal
            finally:
                fatal = None
        if not is_outside:
            # The new task begins in the next pass of the loop. So each slot starts at most one
            # message in a pass, and handlers that never await do not starve other tasks.
            self.wake()
        elif not self._stopped:
            self._loop.call_later(_AFTER_OUTSIDE_S, self.wake)

    def _end(self, call: _Call, result: Result) -> None:
        if self._running.get(call.job) is not call:
            return  # abandoned
        self._remove(call)
        try:
            self._finished(call.job, result)
        except Exception as error:
            self._loop.call_exception_handler(
                {"message": "pulsar_encore: a result was not handled", "exception": error}
            )

    def _remove(self, call: _Call) -> None:
        del self._running[call.job]
        if not self._running:
            if self._watchdog is not None:
                self._watchdog.leave()
            if self._emptied is not None:
                self._emptied.set_result(None)
                self._emptied = None

    # Timeouts and cancellation

    def _set_alarm(self, call: _Call) -> None:
        if call.deadline_s < self._alarm_s:
            self._alarm_s = call.deadline_s
            self._alarm.at(math.ceil(call.deadline_s * 1000))

    def _ring(self, now_ms: int) -> int | None:
        # All running calls are checked, but calls that end in time cost nothing here: with a
        # timeout of a minute, the alarm rings about once a minute.
        now = self._loop.time()
        for call in list(self._running.values()):
            if call.deadline_s <= now:
                if call.reason is None:
                    self._cancel(call, TIMEOUT)
                else:
                    call.deadline_s = math.inf
                    self._stuck(call.job, call.reason)
        earliest = min((call.deadline_s for call in self._running.values()), default=math.inf)
        self._alarm_s = earliest
        return None if earliest == math.inf else math.ceil(earliest * 1000)

    def cancel(self, job: J, reason: str) -> None:
        """Cancel the handler of a job, if it is running.

        The result is `Cancelled`. If the handler ends in another way all the same, `Returned` or
        `Raised` has the reason. The reason of the first cancellation counts.
        """
        call = self._running.get(job)
        if call is not None:
            self._cancel(call, reason)

    def _cancel(self, call: _Call, reason: str) -> None:
        if call.reason is not None:
            return
        call.reason = reason
        call.cancelled_s = self._loop.time()
        call.deadline_s = call.cancelled_s + STUCK_AFTER_S
        self._set_alarm(call)
        self._request(call)

    def _request(self, call: _Call) -> None:
        if call.task is not None and self._cancellable():
            call.is_requested = True
            call.task.cancel()

    def extend(self, job: J, seconds: float) -> bool:
        """Move the deadline of a handler to `seconds` from now, which may be earlier than before.

        Returns:
            True if the handler is running and was not cancelled. Without a timeout there is no
            deadline to move.
        """
        call = self._running.get(job)
        if call is None or call.reason is not None:
            return False
        if self._timeout_s != math.inf:
            call.deadline_s = self._loop.time() + seconds
            self._set_alarm(call)
        return True

    def abandon(self, job: J) -> None:
        """Free the slot of a handler that ignores its cancellation. `finished` is not called.

        The handler runs on until the event loop ends, and does not delay that end.
        """
        call = self._running.get(job)
        if call is None:
            return
        self._remove(call)
        assert call.task is not None
        self._abandoned.append(call.task)
        abandon(call.task, lambda context: context.get(_call) is call)
        self.wake()

    # State

    def running(self) -> dict[J, float]:
        """Return the running jobs, and when each began on the loop's clock, in seconds."""
        return {job: call.started_s for job, call in self._running.items()}

    def stuck(self) -> dict[J, float]:
        """Return the jobs that were cancelled `STUCK_AFTER_S` ago or earlier and still run.

        The values are the seconds since their cancellation.
        """
        now = self._loop.time()
        return {
            job: now - call.cancelled_s
            for job, call in self._running.items()
            if now - call.cancelled_s >= STUCK_AFTER_S
        }

    def left_behind(self) -> int:
        """Return how many abandoned handlers still run on the event loop.

        Handlers in threads do not count: daemon threads end with the process.
        """
        if not self._cancellable():
            return 0
        return sum(not task.done() for task in self._abandoned)

    # End

    def stop(self) -> None:
        """Start no more jobs. Running handlers continue."""
        self._stopped = True

    async def join(self, deadline: float) -> bool:
        """Wait until no handler runs, up to `deadline` on the loop's clock.

        Free slots start new jobs meanwhile, unless `stop` was called.

        Returns:
            True if no handler runs.
        """
        if self._running:
            if self._emptied is None:
                self._emptied = self._loop.create_future()
            # Not a wait for the tasks: an abandoned task may never end.
            await asyncio.wait((self._emptied,), timeout=max(0.0, deadline - self._loop.time()))
        return not self._running

    async def close(self, deadline: float, reason: str = "drain") -> list[J]:
        """Cancel all handlers, and wait for them up to `deadline` on the loop's clock.

        Handlers that still run are abandoned then, also if this call is cancelled.

        Returns:
            The jobs of the abandoned handlers.
        """
        self.stop()
        for call in list(self._running.values()):
            self._cancel(call, reason)
        try:
            await self.join(deadline)
        finally:
            left = list(self._running)
            for job in left:
                self.abandon(job)
            self._alarm.close()
        return left


@coroutine
def _first_step() -> Generator[None, None, None]:
    yield
