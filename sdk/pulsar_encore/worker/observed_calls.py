"""The handler calls of a worker, as observers see them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..message import Message
from ..observability.observations import HandlerCall, HandlerEnd, HandlerResult, Settlement
from ..observability.observer_list import ObserverList
from .list_scheduler import MessageList
from .scheduler import Job
from .worker_core import Ack, DeadLetter, Discard, Failed, Hold, Lost, Nack, RetryLetter, Succeeded


@dataclass(slots=True)
class _Decision:
    """What follows a handler call for one message.

    Attributes:
        delay_s: Seconds until the next attempt, or None.
    """

    settlement: Settlement
    delay_s: float | None = None


def _decision_of(action: Any, now_ms: int) -> _Decision:
    """Return the decision of an action of the core; None stands for a message that is gone."""
    match action:
        case Ack():
            return _Decision("ack")
        case Hold(due_ms=due_ms):
            return _Decision("wait", (due_ms - now_ms) / 1000)
        case Nack(delay_ms=delay_ms):
            return _Decision("nack", delay_ms / 1000)
        case RetryLetter(delay_ms=delay_ms):
            return _Decision("retry_letter", delay_ms / 1000)
        case DeadLetter():
            return _Decision("dead_letter")
        case Discard():
            return _Decision("discard")
    return _Decision("none")


def _most_frequent(decisions: Sequence[_Decision]) -> _Decision:
    """Return the decision about most messages of a list; among equals, the first."""
    if not decisions:
        return _Decision("none")
    [(settlement, _)] = Counter(each.settlement for each in decisions).most_common(1)
    return next(each for each in decisions if each.settlement == settlement)


class ObservedCalls:
    """Reports each handler call of one session: its start, and its end exactly once.

    A job is the `Job` of a message, or the `MessageList` of a batch worker.

    Args:
        worker: Name of the worker.
    """

    def __init__(self, observers: ObserverList, worker: str, subscription: str) -> None:
        self._handler_started = observers.handler_started
        self._handler_ended = observers.handler_ended
        self._list = observers
        self._meters = [make(worker, subscription) for make in observers.call_meters]
        self._makes_events = bool(observers.handler_started or observers.handler_ended)
        self._worker = worker
        self._subscription = subscription
        self._clock = asyncio.get_running_loop().time
        self._started_s: dict[Job | MessageList, float] = {}
        self._running: dict[Job | MessageList, HandlerCall] = {}  # only with observers of events
        self._decisions: dict[Job | MessageList, list[_Decision]] = {}

    def started(self, job: Job | MessageList, messages: tuple[Message, ...]) -> None:
        """Report that a job starts. Call this in the context of the handler."""
        self._started_s[job] = self._clock()
        if not self._makes_events:
            return
        call = HandlerCall(self._worker, messages[0].topic_name(), self._subscription, messages)
        self._running[job] = call
        if self._handler_started is not None:
            self._handler_started(call)

    def acked(self, job: Job) -> None:
        """Report a success whose message is acked."""
        if self._makes_events:
            self._ended(job, "success", _Decision("ack"))
            return
        # The fast path of metrics.
        started_s = self._started_s.pop(job, None)
        if started_s is not None:
            self._measure_success(job.topic, self._clock() - started_s)

    def _measure_success(self, topic: str, duration_s: float) -> None:
        for meter in self._meters:
            try:
                meter.succeeded(topic, duration_s)
            except Exception:  # the meters after it still measure the call
                self._list.log_meter(meter)

    def _measure(
        self, job: Job | MessageList, result: HandlerResult, duration_s: float, error: Any
    ) -> None:
        topic = job.topic if isinstance(job, Job) else job.jobs[0].topic
        if result != "failure":
            self._measure_success(topic, duration_s)
            return
        for meter in self._meters:
            try:
                meter.failed(topic, duration_s, error)
            except Exception:
                self._list.log_meter(meter)

    def drained(self, job: Job | MessageList, error: BaseException | None = None) -> None:
        """Report a call that ended in the drain. Its messages are given back.

        Args:
            error: The error of a handler that failed, or None.
        """
        self._ended(job, "drained" if error is None else "failure", _Decision("none"), error)

    def all_drained(self) -> None:
        """Report the end of the calls that the drain has left behind."""
        for job in list(self._started_s):
            self.drained(job)

    def decided(
        self,
        job: Job | MessageList,
        outcome: Succeeded | Failed | Lost,
        verdict: Failed | Lost | None,
        action: object,
        now_ms: int,
        *,
        by_handler: bool,
    ) -> None:
        """Report a call by the core's decision.

        Args:
            verdict: The nack or rejection of a handler that returned, or None.
            by_handler: True if the handler has settled or detached the message.
        """
        if type(outcome) is Lost:
            self._ended(job, "lost", _Decision("none"))
            return
        decision = _Decision("handler") if by_handler else _decision_of(action, now_ms)
        judged = outcome if verdict is None or type(outcome) is Failed else verdict
        error = judged.error if type(judged) is Failed else None
        result: HandlerResult = "success" if type(judged) is Succeeded else "failure"
        self._ended(job, result, decision, error)

    def note_action(self, job: Job | MessageList, action: object, now_ms: int) -> None:
        """Note what follows for one message of a list, before `list_decided`."""
        self._decisions.setdefault(job, []).append(_decision_of(action, now_ms))

    def list_decided(
        self,
        job: Job | MessageList,
        error: BaseException | None,
        settled: int,
        *,
        failed: bool,
        lost: bool,
    ) -> None:
        """Report the call of a list, after `note_action` for each of its messages.

        Args:
            error: The error of the call, or of a message.
            settled: Number of messages that the handler has settled.
            failed: True if the handler failed, or a message did.
            lost: True if other consumers have all its messages.
        """
        decisions = self._decisions.pop(job, [])
        decisions += [_Decision("handler")] * settled
        result: HandlerResult = "lost" if lost else "failure" if failed else "success"
        self._ended(job, result, _Decision("none") if lost else _most_frequent(decisions), error)

    def _ended(
        self,
        job: Job | MessageList,
        result: HandlerResult,
        decision: _Decision,
        error: BaseException | None = None,
    ) -> None:
        """Report the end of a job, unless it never started or was reported before."""
        started_s = self._started_s.pop(job, None)
        if started_s is None:
            return
        duration_s = self._clock() - started_s
        if self._meters:
            self._measure(job, result, duration_s, error)
        call = self._running.pop(job, None)
        if call is None or self._handler_ended is None:
            return
        self._handler_ended(
            call,
            HandlerEnd(
                result=result,
                settlement=decision.settlement,
                duration=duration_s,
                error=error,
                retry_delay=decision.delay_s,
            ),
        )
