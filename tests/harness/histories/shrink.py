"""Make a failing workload smaller while it still fails.

A smaller workload counts as failing if one of `REPEATS` runs has a finding of a kind that the first
run had. The number of runs is bounded, so the result is small but not the smallest.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from typing import Any, Final

from .history_runner import Outcome, Runner
from .workload import Settling, Workload

REPEATS: Final = 2
SIDE_BY_SIDE: Final = 3


async def shrink(runner: Runner, failing: Outcome, most: int) -> tuple[Outcome, int]:
    """Return the smallest failing run within about `most` runs, and the number of runs."""
    kinds = set(failing.verdict.kinds())
    best, runs = failing, 0
    while runs < most:
        candidates = list(_smaller(best.workload))
        found: Outcome | None = None
        for start in range(0, len(candidates), SIDE_BY_SIDE):
            if runs >= most:
                break
            some = candidates[start : start + SIDE_BY_SIDE]
            tries = [each for each in some for _ in range(REPEATS)]
            runs += len(tries)
            outcomes = await asyncio.gather(*(runner.run(each, failing.client) for each in tries))
            fails = [each for each in outcomes if kinds & set(each.verdict.kinds())]
            if fails:
                found = min(fails, key=lambda outcome: weight(outcome.workload))
                break
        if found is None:
            break
        best = found
    return best, runs


def weight(workload: Workload) -> tuple[int, ...]:
    """Return a sort key for the size of a workload."""
    return (
        len(workload.actions) + workload.members + workload.topics + workload.partitions,
        workload.messages,
        len(workload.dumps()),
    )


def _smaller(workload: Workload) -> Iterator[Workload]:
    """Yield smaller workloads, the boldest change first."""
    for share in (8, 2):
        if workload.messages >= share * 2:
            yield _divided(workload, share)
    if len(workload.segments) > 1:
        yield _changed(workload, segments=workload.segments[:1])
    for at in range(len(workload.actions)):
        yield _changed(workload, actions=workload.actions[:at] + workload.actions[at + 1 :])
    if workload.consumers > 1:
        fewer = workload.consumers - 1
        kept = tuple(a for a in workload.actions if a.who < fewer or a.do in ("unload", "delete"))
        yield _changed(workload, consumers=fewer, actions=kept)
    for name, plain in (("partitions", 0), ("keys", 0), ("writers", 1), ("batch_receive", 0)):
        if getattr(workload, name) != plain and not (name == "keys" and workload.partitions):
            yield _changed(workload, **{name: plain})
    if workload.topics > 1 and not any(a.do == "delete" for a in workload.actions):
        yield _changed(workload, topics=1)
    if workload.batched:
        plain_segments = tuple(dataclasses.replace(each, batch=0) for each in workload.segments)
        yield _changed(workload, segments=plain_segments)
    standard = Settling()
    for field in dataclasses.fields(Settling):
        if field.name in ("attempts", "workers", "group"):
            continue
        value = getattr(standard, field.name)
        if getattr(workload.settling, field.name) != value:
            settling = dataclasses.replace(workload.settling, **{field.name: value})
            yield _changed(workload, settling=settling)


def _divided(workload: Workload, share: int) -> Workload:
    """Return a workload with a share of the messages, and with actions earlier by the same
    share.
    """
    segments = tuple(
        dataclasses.replace(each, messages=max(1, each.messages // share))
        for each in workload.segments
    )
    actions = tuple(
        dataclasses.replace(each, after=each.after // share) for each in workload.actions
    )
    nacked = tuple(sorted({number // share for number in workload.settling.nacked}))
    settling = dataclasses.replace(workload.settling, nacked=nacked)
    return _changed(workload, segments=segments, actions=actions, settling=settling)


def _changed(workload: Workload, **fields: Any) -> Workload:
    return dataclasses.replace(workload, **fields)
