"""A queue of named jobs in front of `Slots`, and a record of their results."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from pulsar_encore.worker.slots import Result, Slots

Handler = Callable[[], Awaitable[Any]]


class Job:
    def __init__(self, name: str, handler: Handler) -> None:
        self.name = name
        self.handler = handler

    def __repr__(self) -> str:
        return self.name


class Desk:
    """A queue of jobs before slots."""

    def __init__(self, size: int = 2, **options: Any) -> None:
        self.timeout: float | None = options.get("timeout")
        self.waiting: deque[Job] = deque()
        self.results: dict[str, Result] = {}
        self.ended_s: dict[str, float] = {}
        self.stuck: list[tuple[str, str]] = []
        self.slots: Slots[Job] = Slots(
            size,
            lambda: self.waiting.popleft() if self.waiting else None,
            lambda job: job.handler(),
            self.finished,
            stuck=lambda job, reason: self.stuck.append((job.name, reason)),
            **options,
        )

    def add(self, name: str, handler: Handler) -> Job:
        job = Job(name, handler)
        self.waiting.append(job)
        self.slots.wake()
        return job

    def finished(self, job: Job, result: Result) -> None:
        assert job.name not in self.results, f"{job.name} was reported twice"
        self.results[job.name] = result
        self.ended_s[job.name] = asyncio.get_running_loop().time()
