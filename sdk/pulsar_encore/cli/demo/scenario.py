"""A row of the table: its measurements, and the texts for their figures.

If a measurement fails, its cell says so in place of the figure.
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
#: Label -> module, and the transport of this package's clients.
SIDES: Final = {
    "stock": ("stock", "stock"),
    "encore": ("encore", "stock"),
    "native": ("encore", "native"),
}


class MeasuredRun(Protocol):
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
        title: The left column: the workload, and the question.
        labels: Names of the measurements, the keys of the outcomes.
        cell: Returns the cell of a column of `SIDES`. Raises KeyError with the label of a missing
            figure.
        alone: True if no other scenario may run at the same time, because speed is measured.
        seconds: Estimated duration, for the progress bar.
        missing: Returns the requirement that this machine lacks; None if it can run.
    """

    title: str
    labels: tuple[str, ...]
    measure: Callable[[MeasuredRun], Awaitable[Outcomes]]
    cell: Callable[[Mapping[str, Figures], str], str]
    alone: bool = False
    seconds: float = 10.0
    missing: Callable[[], str | None] = lambda: None


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    stock: str
    encore: str
    native: str
    missing: tuple[str, ...] = ()


async def attempt(work: Awaitable[Figures]) -> Outcome:
    try:
        return await work
    except MeasurementError as error:
        return error


def all_sides(
    name: str, *, within_s: float, **parameters: Any
) -> Callable[[MeasuredRun], Awaitable[Outcomes]]:
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
    figures = {key: each for key, each in outcomes.items() if not isinstance(each, Exception)}
    missing = tuple(label for label in scenario.labels if label not in figures)

    def cell(column: str) -> str:
        try:
            return scenario.cell(figures, column)
        except KeyError as error:
            return f"could not be measured: {outcomes.get(error.args[0], 'not run')}"

    return Row(scenario.title, cell("stock"), cell("encore"), cell("native"), missing)


def seconds(value: float | None) -> str:
    return "not while we waited" if value is None else f"{value:.1f} s"
