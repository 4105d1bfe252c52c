"""The cost of a message does not grow with the messages that a worker holds.

The tests count executed lines and no time, so a slow machine does not change their results.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from worker_jobs import OUTAGE, core_of, job, run_next

from pulsar_encore import Breaker
from pulsar_encore.worker.worker_core import Ack, Failed, Hold, Order, WorkerCore

FEW, MANY = 100, 9_000


def lines(work: Callable[[], object]) -> int:
    """Return the number of lines that `work` executes."""
    count = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def holding(count: int) -> WorkerCore:
    """Return a core with failed keys, each with a message behind it, and a priority of its own."""
    breaker = Breaker(on=ConnectionError, failures=1_000_000)
    core = core_of(Order.KEY, breaker=breaker, prefetch=64)
    for at in range(count // 2):
        core.received(job(at, f"key {at}"), 0)
        started = core.start(0)
        assert started is not None
        assert isinstance(core.finished(started, Failed(OUTAGE), 0), Hold)
        core.received(job(at, f"key {at}"), 0)
    core.received(job("low", topic="low", priority=-1), 0)
    return core


def messages(core: WorkerCore) -> None:
    for at in range(100):
        assert core.demand() > 0
        core.received(job(at, "healthy"), 500)
        assert run_next(core, 500)[1] == Ack()
        core.next_wake_ms(500)
        core.due_actions(500)


def removals(core: WorkerCore) -> None:
    for each in list(core.jobs())[:50]:
        core.remove(each)


@pytest.mark.parametrize("work", [messages, removals])
def test_the_cost_of_a_message_does_not_depend_on_held_messages(
    work: Callable[[WorkerCore], None],
) -> None:
    few, many = holding(FEW), holding(MANY)
    assert lines(lambda: work(many)) < 1.1 * lines(lambda: work(few))


def test_due_retries_cost_the_same_for_each() -> None:
    def retries(core: WorkerCore) -> None:
        core.start(1_000)

    few, many = holding(FEW), holding(MANY)
    growth = MANY / FEW
    assert lines(lambda: retries(many)) < 1.5 * growth * lines(lambda: retries(few))
