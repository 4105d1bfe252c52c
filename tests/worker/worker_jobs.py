"""Jobs and cores for the tests of a worker's rules."""

from __future__ import annotations

from collections.abc import Hashable
from random import Random
from typing import Any

from pulsar_encore import Breaker, RetryPolicy
from pulsar_encore.worker.worker_core import Action, Failed, Job, Order, Succeeded, WorkerCore

OUTAGE = ConnectionError("refused")
OFTEN = 1_000


def job(
    message: Any = "m",
    group: Hashable | None = None,
    *,
    topic: str = "t",
    size: int = 1,
    attempt: int = 1,
    published_ms: int = 0,
    priority: int = 0,
) -> Job:
    return Job(message, topic, group, size, attempt, published_ms, priority)


def core_of(
    order: Order = Order.NONE,
    *,
    concurrency: int = 2,
    prefetch: int = 4,
    max_bytes: int = 1 << 20,
    retry: RetryPolicy | None = None,
    breaker: Breaker | None = None,
    reject_limit: int | None = 20,
    held_limit: int = 10_000,
) -> WorkerCore:
    """Return a core with small limits, and a delay of 1 s between attempts."""
    return WorkerCore(
        order=order,
        concurrency=concurrency,
        prefetch=prefetch,
        max_bytes=max_bytes,
        retry=retry or RetryPolicy(attempts=3, backoff=[1]),
        breaker=breaker,
        reject_limit=reject_limit,
        rng=Random(1),
        held_limit=held_limit,
    )


def run_next(
    core: WorkerCore, now_ms: int, error: BaseException | None = None
) -> tuple[Any, Action | None]:
    """Start the next job and end it at once; return its message and the action, done already."""
    started = core.start(now_ms)
    if started is None:
        return None, None
    action = core.finished(started, Succeeded() if error is None else Failed(error), now_ms)
    core.settled(started, now_ms) if core.snapshot().settling else None
    return started.message, action
