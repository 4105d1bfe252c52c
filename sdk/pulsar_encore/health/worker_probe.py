"""Questions to a worker on its event loop, from any thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import ConfigurationError
from ..options.checks import seconds
from ..worker.health import Health, Report
from ..worker.worker import Worker
from .probe_answers import WorkerView

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Question:
    """A question about the health of a worker, and the time at which it was put."""

    answer: Future[tuple[Health, Report]]
    asked_s: float


class WorkerProbe:
    """Asks one worker for its health.

    A question that the event loop has not answered stays open, and no second one is put. So the
    time without an answer is counted over several calls of `look_at`, and each call is short. A
    kubelet gives a probe 1 s by default, far less than the loop may be blocked.
    """

    def __init__(self, worker: Worker[Any]) -> None:
        self.worker = worker
        self._lock = threading.Lock()
        self._open: _Question | None = None
        self._last: tuple[Health, Report] | None = None

    def read(self) -> WorkerView:
        """Return the view of the worker. Call it on its event loop, or if it does not run."""
        return WorkerView(
            name=self.worker.name, health=self.worker.health(), report=self.worker.report()
        )

    def is_readable(self) -> bool:
        """Return True if any thread can call `read`, because nothing of the worker changes."""
        return self.worker.loop is None or self._has_ended()

    def put(self) -> _Question | None:
        """Return the open question, or a new one. None if no event loop can answer one."""
        loop = self.worker.loop
        if loop is None or self._has_ended():
            return None
        with self._lock:
            question = self._open
            if question is None or question.answer.done():
                question = _Question(Future(), time.monotonic())
                try:
                    loop.call_soon_threadsafe(_answer, question.answer, self._health_and_report)
                except RuntimeError:  # the loop is closed
                    question = None
                self._open = question
            return question

    def wait(self, question: _Question | None, wait_s: float) -> WorkerView:
        """Return the view of the worker after `put` and at most `wait_s`."""
        if question is not None:
            with suppress(TimeoutError):
                self._last = question.answer.result(wait_s)
                return self._view()
        if self.is_readable():
            return self.read()
        loop = self.worker.loop
        if question is None or loop is None or loop.is_closed():
            return self._view(is_loop_closed=True)
        return self._view(silent_s=time.monotonic() - question.asked_s)

    def ask(self, function: Callable[[], T], wait_s: float) -> T:
        """Call a function on the worker's event loop, and return its result.

        Raises:
            TimeoutError: if the event loop does not answer in `wait_s`, or is closed.
        """
        loop = self.worker.loop
        if loop is None or self.is_readable():
            return function()
        question: Future[T] = Future()
        try:
            loop.call_soon_threadsafe(_answer, question, function)
        except RuntimeError:
            raise TimeoutError("the event loop is closed") from None
        return question.result(wait_s)

    def _has_ended(self) -> bool:
        return self.worker.state in ("ended", "failed")

    def _health_and_report(self) -> tuple[Health, Report]:
        return self.worker.health(), self.worker.report()

    def _view(self, *, silent_s: float = 0.0, is_loop_closed: bool = False) -> WorkerView:
        health, report = self._last or (None, None)
        return WorkerView(
            name=self.worker.name,
            health=health,
            report=report,
            silent_s=silent_s,
            is_loop_closed=is_loop_closed,
        )


def _answer(question: Future[Any], function: Callable[[], Any]) -> None:
    try:
        question.set_result(function())
    except Exception as error:
        question.set_exception(error)


def look_at(probes: Sequence[WorkerProbe], wait_s: float) -> list[WorkerView]:
    """Return the views of workers after at most `wait_s` in all. Any thread can call this.

    All questions are put before the first wait. One wait for each of a hundred workers would take
    longer than any probe waits, while their event loop is blocked for less than the limit.
    """
    end_s = time.monotonic() + wait_s
    questions = [each.put() for each in probes]
    return [
        probe.wait(question, max(0.0, end_s - time.monotonic()))
        for probe, question in zip(probes, questions, strict=True)
    ]


def is_on_loop_of(worker: Worker[Any]) -> bool:
    return worker.loop is asyncio.get_running_loop()


def check_workers(workers: tuple[Any, ...], call: str) -> None:
    """Raise ConfigurationError unless there are workers, each once."""
    if not workers:
        raise ConfigurationError(f"{call}() needs at least one worker: write {call}(worker)")
    for at, each in enumerate(workers):
        if not isinstance(each, Worker):
            raise ConfigurationError(
                f"{call}() takes Worker and BatchWorker objects, got {type(each).__name__}: give "
                "the workers as separate arguments"
            )
        if any(each is other for other in workers[:at]):
            raise ConfigurationError(f"{call}() got the worker {each.name!r} twice: give it once")


def checked_limit(limit: Any) -> float:
    return seconds(limit, "limit", low=0.1, high=3600)
