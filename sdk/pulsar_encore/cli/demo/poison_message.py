"""A message that always fails: does its dead letter say why, and can it be replayed?"""

from __future__ import annotations

from collections.abc import Mapping

from .scenario import SIDES, Scenario, all_sides
from .workload import Figures


def _cell(figures: Mapping[str, Figures], column: str) -> str:
    found = figures[column]
    letter = (
        f"dead-lettered after {found['deliveries']:.0f} deliveries, "
        f"{found['evidence']:.0f} properties say why, event time "
        f"{'kept' if found['event_time'] else 'lost'}"
    )
    if column == "stock":
        return f"{letter} (no replay in the client)"
    if not found["replayed"]:
        return f"{letter}; replayed, but not received again"
    return f"{letter}; replayed, and received at attempt {found['attempt']:.0f}"


SCENARIO = Scenario(
    title="A poison message is dead-lettered: does the letter say why, and can it be replayed?",
    labels=tuple(SIDES),
    measure=all_sides("poison_message", within_s=30, most=2),
    cell=_cell,
    seconds=4,
)
