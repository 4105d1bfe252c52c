"""A message that always fails: does its dead letter say why, and can it be replayed?"""

from __future__ import annotations

from collections.abc import Mapping

from .scenario import SIDES, Scenario, all_sides
from .workload import Figures


def _letter(figures: Figures) -> str:
    event_time = "kept" if figures["event_time"] else "lost"
    return (
        f"dead-lettered after {figures['deliveries']:.0f} deliveries, "
        f"{figures['evidence']:.0f} properties say why, event time {event_time}"
    )


def _stock(figures: Mapping[str, Figures]) -> str:
    return f"{_letter(figures['stock'])} (no replay in the client)"


def _ours(figures: Mapping[str, Figures], label: str) -> str:
    ours = figures[label]
    if not ours["replayed"]:
        return f"{_letter(ours)}; replayed, but not received again"
    return f"{_letter(ours)}; replayed, and received at attempt {ours['attempt']:.0f}"


SCENARIO = Scenario(
    title="A poison message is dead-lettered: does the letter say why, and can it be replayed?",
    labels=tuple(SIDES),
    measure=all_sides("poison_message", within_s=30, most=2),
    stock=_stock,
    ours=_ours,
    seconds=4,
)
