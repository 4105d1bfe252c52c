"""Runs workloads, many at once, and puts history and verdict together.

Owns `Outcome` and `Runner`. Histories mostly wait, so several share one loop and one broker.
"""

from __future__ import annotations

import asyncio
import time
import traceback
import uuid
from dataclasses import dataclass

from .brokers import Brokers
from .checker import Finding, Verdict, check
from .clients import ClientName
from .event_record import Event
from .player import play
from .workload import Workload


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One run.

    Attributes:
        workload: What was run.
        client: Which client it was played on.
        verdict: What the checker says.
        events: The history.
        seconds: Wall clock.
    """

    workload: Workload
    client: ClientName
    verdict: Verdict
    events: list[Event]
    seconds: float


class Runner:
    """Runs workloads on the brokers of a session, so many at once.

    Args:
        brokers: Open.
        at_once: Runs side by side.
    """

    def __init__(self, brokers: Brokers, at_once: int) -> None:
        self._brokers = brokers
        self._slots = asyncio.Semaphore(at_once)

    async def run(self, workload: Workload, client: ClientName = "encore") -> Outcome:
        """Play it, and check the history."""
        async with self._slots:
            return await self._run(workload, client)

    async def _run(self, workload: Workload, client: ClientName) -> Outcome:
        name = f"{workload.name}-{workload.seed}-{client}-{uuid.uuid4().hex[:6]}"
        async with self._brokers.lend(private=workload.breaks_broker) as broker:
            began = time.monotonic()
            events: list[Event] = []
            try:
                recorder = await play(workload, broker, client, name)
                recorder.late(self._brokers.lags())
                events = recorder.events
                verdict = await asyncio.to_thread(check, workload, events, exact=client == "native")
            except Exception:  # no history, no verdict: it must not pass, nor end the others
                verdict = Verdict(findings=[Finding(kind="no run", text=traceback.format_exc())])
            return Outcome(
                workload=workload,
                client=client,
                verdict=verdict,
                events=events,
                seconds=time.monotonic() - began,
            )
