"""Broken rules of a worker's core are found by the small worlds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from core_world import Violation, search
from test_worker_core_worlds import WORLDS

from pulsar_encore.worker.breaker import BreakerState
from pulsar_encore.worker.reject_streak import RejectStreak
from pulsar_encore.worker.scheduler import Job, Scheduler
from pulsar_encore.worker.worker_core import Lost, WorkerCore

Change = Callable[[Any], Callable[..., Any]]


def without_group(add: Any) -> Callable[..., Any]:
    def changed(self: Scheduler, job: Job) -> Any:
        job.group = None
        return add(self, job)

    return changed


def too_early(release_due: Any) -> Callable[..., Any]:
    return lambda self, now_ms: release_due(self, now_ms + 5_000)


def always_proof(start: Any) -> Callable[..., Any]:
    def changed(self: WorkerCore, now_ms: int) -> Job | None:
        job: Job | None = start(self, now_ms)
        if job is not None:
            job.has_proof = True
        return job

    return changed


def frees_the_group(remove: Any) -> Callable[..., Any]:
    def changed(self: WorkerCore, job: Job) -> None:
        if job in self.jobs() and self.running:
            self.finished(job, Lost(), 0)

    return changed


def forgets_the_group(leave: Any) -> Callable[..., Any]:
    def changed(self: Scheduler, job: Job) -> None:
        group, job.group = job.group, None
        leave(self, job)
        job.group = group

    return changed


def forgets_set_aside(_: Any) -> Callable[..., Any]:
    return lambda self: setattr(self, "trials", 0)


def nothing(_: Any) -> Callable[..., Any]:
    return lambda *arguments, **named: None


def answer(value: Any) -> Change:
    return lambda _: lambda *arguments, **named: value


def shorter_pause(failed: Any) -> Callable[..., Any]:
    def changed(self: BreakerState, error: Any, now_ms: int, *, was_probe: bool) -> None:
        failed(self, error, now_ms - 10_000, was_probe=was_probe)

    return changed


@pytest.mark.parametrize(
    ("world", "owner", "method", "change", "text"),
    [
        ("keys", Scheduler, "add", without_group, "two of|overtakes"),
        ("keys", WorkerCore, "remove", frees_the_group, "."),
        ("keys", Scheduler, "leave", forgets_the_group, "nothing more happens|goes on"),
        ("keys", Scheduler, "release_due", too_early, "before it is due"),
        ("no order", WorkerCore, "not_settled", nothing, "settling jobs are wrong"),
        ("no order", WorkerCore, "settled", nothing, "a message is lost, or held too long"),
        ("no order", WorkerCore, "acked", nothing, "a message is lost, or held too long"),
        ("no order", WorkerCore, "demand", answer(-1), "demand is negative"),
        ("no order", WorkerCore, "next_wake_ms", answer(None), "nothing more happens"),
        ("partitions", WorkerCore, "demand", answer(2), "over the limit"),
        ("priorities and a pause", WorkerCore, "pause", nothing, "in a pause"),
        ("an outage without order", WorkerCore, "start", always_proof, "outage of"),
        ("an outage with keys", BreakerState, "failed", shorter_pause, "pause is too short"),
        ("two outages", Scheduler, "end_trials", forgets_set_aside, "nothing more"),
        ("rejections", RejectStreak, "rejected", answer(False), "reject of"),
        ("rejections", RejectStreak, "trial_started", nothing, "too frequent"),
    ],
)
def test_a_changed_rule_breaks_a_world(
    monkeypatch: pytest.MonkeyPatch, world: str, owner: Any, method: str, change: Change, text: str
) -> None:
    monkeypatch.setattr(owner, method, change(getattr(owner, method)))
    with pytest.raises(Violation, match=text):
        search(WORLDS[world], 3_000)
