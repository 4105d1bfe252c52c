"""Run workloads side by side, and check their histories.

A history mostly waits, so several share one loop and one broker.
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
        workload: The workload.
        client: The client that played it.
        verdict: The checker's verdict.
        events: The history.
        seconds: Wall-clock time, in s.
    """

    workload: Workload
    client: ClientName
    verdict: Verdict
    events: list[Event]
    seconds: float


class Runner:
    """Runs workloads on the brokers of a session.

    Args:
        brokers: Open brokers.
        at_once: Largest number of concurrent runs.
    """

    def __init__(self, brokers: Brokers, at_once: int) -> None:
        self._brokers = brokers
        self._slots = asyncio.Semaphore(at_once)

    async def run(self, workload: Workload, client: ClientName = "encore") -> Outcome:
        """Play a workload and check its history."""
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
            except Exception:  # a failed run is a finding, and must not end the other runs
                verdict = Verdict(findings=[Finding(kind="no run", text=traceback.format_exc())])
            return Outcome(
                workload=workload,
                client=client,
                verdict=verdict,
                events=events,
                seconds=time.monotonic() - began,
            )
