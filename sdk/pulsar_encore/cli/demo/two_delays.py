"""Nack two messages of one batch with two delays: each should be redelivered at its own time."""

from __future__ import annotations

from collections.abc import Mapping

from .scenario import SIDES, Scenario, all_sides, seconds
from .workload import Figures

SHORT_S = 1.0
LONG_S = 3.0


def _cell(figures: Mapping[str, Figures], column: str) -> str:
    times = figures[column]
    text = f"after {seconds(times['short_s'])} and {seconds(times['long_s'])}"
    return f"{text} (one delay for the whole consumer)" if column == "stock" else text


SCENARIO = Scenario(
    title=(
        f"Two messages of one batch, nacked for {SHORT_S:g} s and {LONG_S:g} s: "
        "when are they redelivered?"
    ),
    labels=tuple(SIDES),
    measure=all_sides("two_delays", within_s=30, short_s=SHORT_S, long_s=LONG_S),
    cell=_cell,
    seconds=6,
)
