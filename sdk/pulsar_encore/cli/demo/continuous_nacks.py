"""A stream of nacks: the first redelivery should follow its delay, not the end of the stream."""

from __future__ import annotations

from collections.abc import Mapping

from .scenario import SIDES, Scenario, all_sides, seconds
from .workload import Figures

DELAY_S = 1.5
EVERY_S = 0.1
FOR_S = 6.0


def _cell(figures: Mapping[str, Figures], column: str) -> str:
    first = figures[column]["first_s"]
    text = f"after {seconds(first)}" if first is not None else seconds(first)
    if column != "stock":
        return text
    stopped = figures[column]["stopped_s"]
    late = first is None or (stopped is not None and first > stopped)
    return f"{text} (nothing until nacking stopped)" if late else text


SCENARIO = Scenario(
    title=(
        f"A nack every {EVERY_S * 1000:.0f} ms for {FOR_S:g} s, delay {DELAY_S:g} s: "
        "when is the first message redelivered?"
    ),
    labels=tuple(SIDES),
    measure=all_sides(
        "continuous_nacks",
        within_s=40,
        delay_s=DELAY_S,
        every_s=EVERY_S,
        for_s=FOR_S,
    ),
    cell=_cell,
    seconds=11,
)
