"""Poll with a timeout: a receive that times out should not lose a message."""

from __future__ import annotations

from collections.abc import Mapping

from .scenario import SIDES, Scenario, all_sides
from .workload import Figures

COUNT = 1000
BURST = 10
EVERY_S = 0.04
TIMEOUT_S = 0.02


def _cell(figures: Mapping[str, Figures], column: str) -> str:
    counts = figures[column]
    text = f"{counts['seen']:,.0f} of {counts['sent']:,.0f}"
    return f"{text} ({counts['timed_out']:,.0f} receives timed out)"


SCENARIO = Scenario(
    title=(
        f"asyncio.wait_for(receive(), {TIMEOUT_S * 1000:g} ms) while {BURST} messages come "
        f"every {EVERY_S * 1000:g} ms: how many are received?"
    ),
    labels=tuple(SIDES),
    measure=all_sides(
        "timed_out_receives",
        within_s=40,
        count=COUNT,
        burst=BURST,
        every_s=EVERY_S,
        timeout_s=TIMEOUT_S,
    ),
    cell=_cell,
    seconds=7,
)
