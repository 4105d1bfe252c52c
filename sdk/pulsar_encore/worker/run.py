"""Run workers until they are stopped: signals, one drain budget, and the first failure."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final, Generic, Literal, Protocol, TypeVar, overload, runtime_checkable

from ..client import logger_of
from ..errors import ConfigurationError
from ..options.checks import seconds
from .drain_deadline import DrainDeadline
from .drain_signals import signals

_LOGGER: Final = "pulsar_encore.worker"

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

_CUT_OFF_S: Final = 0.25
"""How long after its budget a worker is cut off: its own time limits come first."""
_CLOSE_S: Final = 0.25
"""How long a worker that is cut off may take to close."""


@runtime_checkable
class Runnable(Protocol[R_co]):
    """A worker, as `run` sees it."""

    @property
    def name(self) -> str: ...

    @property
    def drain(self) -> float:
        """The budget of the drain if `run` gets none, in s."""

    @property
    def on_failure(self) -> Literal["raise", "terminate"]: ...

    async def serve(self, deadline: DrainDeadline, /) -> R_co:
        """Run until `stop` was called and the drain ended, and return the report.

        A worker that is stopped begins its budget, unless `run` began it at the signal. Cancelling
        this call closes the worker.
        """
        ...

    def stop(self) -> None:
        """Begin the drain. Any thread can call this, more than once."""

    def report(self) -> R_co:
        """Return the report up to now, for a worker whose `serve` does not end."""
        ...

    def unfinished(self) -> int:
        """Return how many handlers on the event loop were left behind and still run.

        They ignored their cancellation, so they can keep the process from ending. Any thread can
        call this.
        """
        ...


@overload
async def run(worker: Runnable[R], /, *, drain: float | timedelta | None = None) -> R: ...


@overload
async def run(
    worker: Runnable[R],
    another: Runnable[R],
    /,
    *more: Runnable[R],
    drain: float | timedelta | None = None,
) -> tuple[R, ...]: ...


async def run(*workers: Runnable[Any], drain: float | timedelta | None = None) -> Any:
    """Run workers until SIGTERM, SIGINT or `stop` ends them, and return their reports.

    The first signal drains all workers. A second one ends the process at once, with exit code 128 +
    signal. If the event loop is blocked, or a handler goes on in spite of its cancellation, the
    process ends the same way one second after the budget, with the reason in the log. When `run`
    returns, the signal handlers are as they were before.

    If a worker fails, the others drain, and its error is raised. A worker with
    `on_failure="terminate"` then also sends SIGTERM to this process. If this call is cancelled, the
    workers are closed without a drain.

    Python handles signals on the main thread only. Elsewhere, call `worker.stop()` instead.
    Windows delivers no SIGTERM. Several calls can run at the same time: the first on the main
    thread handles signals for all of them.

    Args:
        drain: The budget of the drain, from the signal to the return of this call, in s or as a
            timedelta. None means the longest `drain` of the workers.

    Returns:
        The report of the worker, or a tuple of reports in the order of several workers.

    Raises:
        ConfigurationError: if there is no worker, one worker twice, or an object of another type.

    Example:
        ```python
        async with encore.Client(url) as client:
            orders = encore.Worker(client, "orders", "billing", bill)
            refunds = encore.Worker(client, "refunds", "billing", refund)
            await encore.run(orders, refunds, drain=20)
        ```
    """
    _check(workers)
    longest = max(each.drain for each in workers)
    budget_s = longest if drain is None else seconds(drain, "drain")
    reports = await _Run(workers, budget_s).serve()
    return reports[0] if len(workers) == 1 else tuple(reports)


def _check(workers: tuple[Any, ...]) -> None:
    if not workers:
        raise ConfigurationError("run() needs at least one worker: write run(worker)")
    for at, each in enumerate(workers):
        if isinstance(each, type) or not isinstance(each, Runnable):
            kind = f"the class {each.__name__}" if isinstance(each, type) else type(each).__name__
            advice = "give the workers as separate arguments: run(*workers)"
            if asyncio.iscoroutine(each):
                each.close()  # it would warn that it was never awaited
                advice = "give the worker itself, without calling a method of it"
            elif not isinstance(each, list | tuple | set):
                advice = "write run(Worker(client, ...))"
            raise ConfigurationError(
                f"run() takes Worker and BatchWorker objects, got {kind}: {advice}"
            )
        if any(each is other for other in workers[:at]):
            raise ConfigurationError(
                f"run() got the worker {each.name!r} twice: give it once, and a higher concurrency="
            )


def _log_of(workers: Iterable[Runnable[Any]]) -> logging.Logger:
    """Return the logger of the client of these workers; the package's if they have several."""
    clients = {id(client): client for client in (getattr(each, "client", None) for each in workers)}
    if len(clients) == 1:
        (client,) = clients.values()
        if client is not None:
            return logger_of(client)(_LOGGER)
    return logging.getLogger(_LOGGER)


class _Served(Generic[R]):
    """One worker of a run, with its task and its deadline.

    Attributes:
        log: The logger of its client.
        ended: Done when the worker has ended, or has overrun its budget and is left behind.
    """

    def __init__(self, worker: Runnable[R], budget_s: float) -> None:
        self.worker: Runnable[R] = worker
        self.log: logging.Logger = _log_of((worker,))
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self.loop.create_future()
        self.deadline: DrainDeadline = DrainDeadline(budget_s, self.loop.time, self._on_begin)
        self.task: asyncio.Task[R] = self.loop.create_task(
            worker.serve(self.deadline), name=f"pulsar-encore worker {worker.name}"
        )
        self.task.add_done_callback(lambda _: self._end())
        self._timers: list[asyncio.TimerHandle] = []
        self._is_closed = False

    def drain(self, at: float) -> None:
        """Stop the worker, and begin its budget unless it has begun."""
        if not self.task.done():
            self.deadline.begin(at)
            self.worker.stop()

    def close(self, time_s: float) -> None:
        """Cancel the worker, and leave it behind if it does not close in time."""
        if not self.task.done():
            self._is_closed = True
            self.task.cancel()
            self._timers.append(self.loop.call_later(time_s, self._leave, time_s))

    def _on_begin(self, end: float) -> None:
        self._timers.append(self.loop.call_at(end + _CUT_OFF_S, self._cut_off))

    def _cut_off(self) -> None:
        self.log.error(
            "worker %r did not end within the drain of %g s: it is closed now",
            self.worker.name,
            self.deadline.budget_s,
        )
        self.close(_CLOSE_S)

    def _leave(self, time_s: float) -> None:
        self.log.error("worker %r did not close within %g s: it is left", self.worker.name, time_s)
        self._end()

    def _end(self) -> None:
        for timer in self._timers:
            timer.cancel()
        if not self.ended.done():
            self.ended.set_result(None)

    def error(self) -> BaseException | None:
        """Return the error of a worker that has ended by itself."""
        if not self.task.done():
            return None
        if self.task.cancelled():
            return None if self._is_closed else asyncio.CancelledError()
        return self.task.exception()

    def report(self) -> R:
        if self.task.done() and not self.task.cancelled() and self.task.exception() is None:
            return self.task.result()
        return self.worker.report()

    def is_unfinished(self) -> bool:
        return not self.task.done() or self.worker.unfinished() > 0


class _Run(Generic[R]):
    """One call of `run`."""

    def __init__(self, workers: tuple[Runnable[R], ...], budget_s: float) -> None:
        self.budget_s: float = budget_s
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.thread: int = threading.get_ident()
        self.names: str = _names(workers)
        self.log: logging.Logger = _log_of(workers)
        self._served = [_Served(each, budget_s) for each in workers]
        self._pending = {each.ended: each for each in self._served}
        self._failed: tuple[Runnable[R], BaseException] | None = None
        self._signalled = False
        self._is_closed = False
        self._has_returned = False

    def is_unfinished(self) -> bool:
        return not self._has_returned or any(each.is_unfinished() for each in self._served)

    def on_signal(self, name: str, at: float) -> None:
        if not self._signalled and not self._has_returned:
            self._signalled = True
            self.log.info("%s: draining %s within %g s", name, self.names, self.budget_s)
            # The clock of uvloop stands still while the loop is blocked, so the time since the
            # signal is measured with another clock.
            self._drain(self.loop.time() - max(0.0, time.monotonic() - at))

    def _drain(self, at: float) -> None:
        for each in self._served:
            each.drain(at)

    async def serve(self) -> list[R]:
        """Wait for the workers, and return their reports or raise the first error."""
        signals.add(self)
        try:
            await self._wait()
        except BaseException:
            self._is_closed = True
            for each in self._served:
                each.close(self.budget_s)
            await self._wait()
            raise
        finally:
            self._has_returned = True
            signals.remove(self)
        if self._failed is not None:
            worker, error = self._failed
            if worker.on_failure == "terminate" and not self._signalled:
                terminate_process(worker, error)
            raise error
        return [each.report() for each in self._served]

    async def _wait(self) -> None:
        """Wait for the end of all workers. After a failure the others drain."""
        while self._pending:
            done, _ = await asyncio.wait(self._pending, return_when=asyncio.FIRST_COMPLETED)
            for each in [self._pending.pop(ended) for ended in done]:
                error = each.error()
                if error is not None:
                    self._on_failure(each, error)

    def _on_failure(self, served: _Served[R], error: BaseException) -> None:
        worker, log = served.worker, served.log
        others = _names(each.worker for each in self._pending.values())
        if self._failed is not None or self._is_closed:
            log.error("worker %r failed as well", worker.name, exc_info=error)  # nobody raises it
        elif others:
            log.error("worker %r failed: draining %s", worker.name, others, exc_info=error)
        if self._failed is None:
            self._failed = (worker, error)
            self._drain(self.loop.time())


def _names(workers: Iterable[Runnable[Any]]) -> str:
    return ", ".join(f"worker {each.name!r}" for each in workers)


def terminate_process(worker: Runnable[Any], error: BaseException | None) -> None:
    """Log the failure of a worker, and send SIGTERM to this process."""
    _log_of((worker,)).error(
        "worker %r failed, so this process gets SIGTERM: %s", worker.name, error, exc_info=error
    )
    if sys.platform == "win32":
        signal.raise_signal(signal.SIGTERM)  # os.kill would end the process without any handler
    else:
        os.kill(os.getpid(), signal.SIGTERM)  # to the main thread, which raise_signal may not reach
