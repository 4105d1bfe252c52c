"""What a row of the table is: measurements to make, and how their figures are put into words.

Owns `Scenario`. A row is complete when every one of its measurements gave figures; what is missing
is said in the row, in place of the figure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from .measuring import MeasurementError
from .workload import Figures

Outcome = Figures | MeasurementError
Outcomes = Mapping[str, Outcome]
SIDES: Final = ("stock", "encore")


class Run(Protocol):
    """What a scenario may ask for: `measure` with address and topic filled in."""

    def __call__(
        self, side: str, name: str, *, within_s: float, topic: str = "", **parameters: Any
    ) -> Awaitable[Figures]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """One row.

    Attributes:
        title: The left column: what is done, and the question.
        labels: What is measured, as in progress lines; the keys of the outcomes.
        measure: Makes every measurement, one awaitable for each label.
        stock, encore: The two cells, from the figures they name; called with complete ones only.
        alone: Nothing else may run beside it, because it is a matter of speed.
        seconds: About how long it takes, for the progress bar.
    """

    title: str
    labels: tuple[str, ...]
    measure: Callable[[Run], Awaitable[Outcomes]]
    stock: Callable[[Mapping[str, Figures]], str]
    encore: Callable[[Mapping[str, Figures]], str]
    alone: bool = False
    seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class Row:
    """A finished row; `missing` names the measurements that failed."""

    title: str
    stock: str
    encore: str
    missing: tuple[str, ...] = ()


async def attempt(work: Awaitable[Figures]) -> Outcome:
    """The figures, or why there are none."""
    try:
        return await work
    except MeasurementError as error:
        return error


def both_sides(
    name: str, *, within_s: float, **parameters: Any
) -> Callable[[Run], Awaitable[Outcomes]]:
    """Measure the same function of both sides at the same time; labels ``stock``, ``encore``."""

    async def measure(run: Run) -> Outcomes:
        outcomes = await asyncio.gather(
            *(attempt(run(side, name, within_s=within_s, **parameters)) for side in SIDES)
        )
        return dict(zip(SIDES, outcomes, strict=True))

    return measure


def row_of(scenario: Scenario, outcomes: Outcomes) -> Row:
    """Put a scenario's outcomes into words."""
    figures = {key: each for key, each in outcomes.items() if not isinstance(each, Exception)}
    missing = tuple(label for label in scenario.labels if label not in figures)
    cells = []
    for tell in (scenario.stock, scenario.encore):
        try:
            cells.append(tell(figures))
        except KeyError as error:
            reason = outcomes.get(error.args[0], "not run")
            cells.append(f"could not be measured: {reason}")
    return Row(scenario.title, cells[0], cells[1], missing)


def seconds(value: float | None) -> str:
    """A time for the table."""
    return "not while we waited" if value is None else f"{value:.1f} s"
