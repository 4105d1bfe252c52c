"""Receive and ack one message at a time, in one task: messages per second.

Four ways read the same topic, each with its own subscription and process. They run in turn, several
times, so that changes in the machine's load affect all of them.
"""

from __future__ import annotations

import statistics
import uuid
from collections.abc import Mapping
from typing import Final

from .scenario import MeasuredRun, Outcome, Outcomes, Scenario, attempt
from .workload import PAYLOAD, Figures

ROUNDS = 3
#: Label -> module, function, transport, messages per round: half a second of work or more.
WAYS: Final[Mapping[str, tuple[str, str, str, int]]] = {
    "stock asyncio": ("stock", "throughput_asyncio", "stock", 20_000),
    "stock sync": ("stock", "throughput_sync", "stock", 200_000),
    "encore": ("encore", "throughput", "stock", 300_000),
    "native": ("encore", "throughput", "native", 300_000),
}
MESSAGES = 301_000
BATCH = 1000


async def compare(
    run: MeasuredRun,
    *,
    rounds: int,
    messages: int,
    batch: int,
    topic: str,
    size: int = len(PAYLOAD),
    ways: Mapping[str, tuple[str, str, str, int]] = WAYS,
) -> Outcomes:
    """Publish, then let each way in turn read from the start; return the median of each figure.

    Args:
        messages: Messages to publish. Every way reads its number of them, at most all but one.
        batch: Messages per entry; 0 for no batches.
    """
    filled = await attempt(
        run("stock", "fill", within_s=60, topic=topic, count=messages, batch=batch, size=size)
    )
    if isinstance(filled, Exception):
        return dict.fromkeys(ways, filled)
    results: dict[str, list[Outcome]] = {label: [] for label in ways}
    for _ in range(rounds):
        for label, (side, name, transport, count) in ways.items():
            parameters = {"count": min(count, messages - 1), "subscription": uuid.uuid4().hex}
            work = run(side, name, within_s=60, transport=transport, topic=topic, **parameters)
            results[label].append(await attempt(work))
    return {label: _median(each) for label, each in results.items()}


def _median(outcomes: list[Outcome]) -> Outcome:
    rounds: list[Figures] = []
    for each in outcomes:
        if isinstance(each, Exception):
            return each
        rounds.append(each)
    return {key: statistics.median(one[key] or 0.0 for one in rounds) for key in rounds[0]}


async def _measure(run: MeasuredRun) -> Outcomes:
    topic = f"encore-demo-{uuid.uuid4().hex}"
    return await compare(run, rounds=ROUNDS, messages=MESSAGES, batch=BATCH, topic=topic)


def _cell(figures: Mapping[str, Figures], column: str) -> str:
    if column == "stock":
        return (
            f"asyncio {figures['stock asyncio']['per_s']:,.0f}/s, "
            f"synchronous loop {figures['stock sync']['per_s']:,.0f}/s"
        )
    ours = figures[column]["per_s"] or 0.0
    ratios = [
        f"{ours / (figures[beside]['per_s'] or 1.0):.1f} x {word}"
        for beside, word in (("stock asyncio", "asyncio"), ("stock sync", "synchronous"))
        if beside in figures
    ]
    return f"{ours:,.0f}/s ({', '.join(ratios)})" if ratios else f"{ours:,.0f}/s"


SCENARIO = Scenario(
    title=f"Receive and acknowledge 100-byte messages, batches of {BATCH:,}, one task: how fast?",
    labels=tuple(WAYS),
    measure=_measure,
    cell=_cell,
    alone=True,
    seconds=20,
)
