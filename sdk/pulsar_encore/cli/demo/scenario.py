"""What a row of the table is: measurements to make, and how their figures are put into words.

Owns `Scenario`. A row is complete when every one of its measurements gave figures; what is missing
is said in the row, in place of the figure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from .measurement import MeasurementError
from .workload import Figures

Outcome = Figures | MeasurementError
Outcomes = Mapping[str, Outcome]
#: Label -> side, and the transport of its clients where it is this package.
SIDES: Final = {
    "stock": ("stock", "stock"),
    "encore": ("encore", "stock"),
    "native": ("encore", "native"),
}


class MeasuredRun(Protocol):
    """What a scenario may ask for: `measure` with address and topic filled in."""

    def __call__(
        self,
        side: str,
        name: str,
        *,
        within_s: float,
        transport: str = "stock",
        topic: str = "",
        **parameters: Any,
    ) -> Awaitable[Figures]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """One row.

    Attributes:
        title: The left column: what is done, and the question.
        labels: What is measured, as in progress lines; the keys of the outcomes.
        measure: Makes every measurement, one awaitable for each label.
        stock: The stock client's cell, from the figures it names; called with complete ones only.
        ours: This package's, by the label of a measurement: one cell for each transport.
        alone: Nothing else may run beside it, because it is a matter of speed.
        seconds: About how long it takes, for the progress bar.
        missing: What it needs and this machine lacks, in words; then there is no such row.
    """

    title: str
    labels: tuple[str, ...]
    measure: Callable[[MeasuredRun], Awaitable[Outcomes]]
    stock: Callable[[Mapping[str, Figures]], str]
    ours: Callable[[Mapping[str, Figures], str], str]
    alone: bool = False
    seconds: float = 10.0
    missing: Callable[[], str | None] = lambda: None


@dataclass(frozen=True, slots=True)
class Row:
    """A finished row; `missing` names the measurements that failed."""

    title: str
    stock: str
    encore: str
    native: str
    missing: tuple[str, ...] = ()


async def attempt(work: Awaitable[Figures]) -> Outcome:
    """The figures, or why there are none."""
    try:
        return await work
    except MeasurementError as error:
        return error


def all_sides(
    name: str, *, within_s: float, **parameters: Any
) -> Callable[[MeasuredRun], Awaitable[Outcomes]]:
    """Measure the same function of all sides at the same time; labels as in `SIDES`."""

    async def measure(run: MeasuredRun) -> Outcomes:
        outcomes = await asyncio.gather(
            *(
                attempt(run(side, name, within_s=within_s, transport=transport, **parameters))
                for side, transport in SIDES.values()
            )
        )
        return dict(zip(SIDES, outcomes, strict=True))

    return measure


def row_of(scenario: Scenario, outcomes: Outcomes) -> Row:
    """Put a scenario's outcomes into words."""
    figures = {key: each for key, each in outcomes.items() if not isinstance(each, Exception)}
    missing = tuple(label for label in scenario.labels if label not in figures)
    return Row(
        scenario.title,
        stock=_cell(lambda: scenario.stock(figures), outcomes),
        encore=_cell(lambda: scenario.ours(figures, "encore"), outcomes),
        native=_cell(lambda: scenario.ours(figures, "native"), outcomes),
        missing=missing,
    )


def _cell(render: Callable[[], str], outcomes: Outcomes) -> str:
    try:
        return render()
    except KeyError as error:
        return f"could not be measured: {outcomes.get(error.args[0], 'not run')}"


def seconds(value: float | None) -> str:
    """A time for the table."""
    return "not while we waited" if value is None else f"{value:.1f} s"
