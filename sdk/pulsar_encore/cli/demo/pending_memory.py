"""A million pending nacks: how much does the process grow?

The ids are made up and not received: a broker would stop delivering long before a million unacked
messages.
"""

from __future__ import annotations

from collections.abc import Mapping

from .scenario import SIDES, Scenario, all_sides
from .workload import Figures

COUNT = 1_000_000
DELAY_S = 3600.0


def _cell(figures: Mapping[str, Figures], column: str) -> str:
    megabytes, count = figures[column]["mb"] or 0.0, figures[column]["count"] or 1.0
    return f"{megabytes:,.1f} MB ({megabytes * 1e6 / count:,.1f} bytes each)"


SCENARIO = Scenario(
    title=f"{COUNT:,} ids, nacked in order, wait for an hour: how much memory do they take?",
    labels=tuple(SIDES),
    measure=all_sides("pending_memory", within_s=60, count=COUNT, delay_s=DELAY_S),
    cell=_cell,
    alone=True,
    seconds=12,
)
