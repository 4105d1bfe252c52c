"""The row that every benchmark returns: measured pairs, their ratio and its bar.

Machines are noisy, so figures of different runs say little. A row contains pairs that were measured
in turns, and its ratio is the median of the ratios of the pairs. A bar is a promise of the project,
and only `met` decides whether it is kept.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Spread(NamedTuple):
    """Median and quartiles."""

    low: float
    median: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a table.

    Attributes:
        what: The measurement.
        unit: Unit of `ours` and `other`.
        ours: One figure for each measurement of this package.
        other: The figures of the other subject, in the order of `ours`; empty without one.
        beside: Name of the other subject.
        bar: The promise: of the ratio, or of the figure in a row without another subject; or None.
        higher_is_better: True if the value must be at least the bar, False if at most.
        chart: Title of the chart that shows the row with others, or "".
        bars: True for a figure that is measured once: the chart shows it as a bar, not as a ratio.
        note: A remark for readers, or "".
        series: The figures over time or size as points (x, y), in the order of x; may be empty.
        x_axis: Label of x with its unit, such as "minutes"; only with `series`.
        y_axis: Label of y with its unit.
        label: Name of the series in the legend, if `what` names one of its points.
    """

    what: str
    unit: str
    ours: tuple[float, ...]
    other: tuple[float, ...] = ()
    beside: str = ""
    bar: float | None = None
    higher_is_better: bool = False
    chart: str = ""
    bars: bool = False
    note: str = ""
    series: tuple[tuple[float, float], ...] = ()
    x_axis: str = ""
    y_axis: str = ""
    label: str = ""

    def __post_init__(self) -> None:
        if not self.ours or (self.other and len(self.other) != len(self.ours)):
            raise ValueError(f"{self.what}: {len(self.ours)} and {len(self.other)} figures")
        if self.bar is not None and self.other and not all(self.other):
            raise ValueError(
                f"{self.what}: a bar for a ratio, but a figure of {self.beside} is 0: repeat the "
                "benchmark"
            )
        if self.bars and not self.chart:
            raise ValueError(f"{self.what}: bars need the title of their chart")
        if bool(self.series) != bool(self.x_axis and self.y_axis):
            raise ValueError(f"{self.what}: a series and the labels of its axes go together")

    @property
    def figure(self) -> Spread:
        """Our figure."""
        return spread(self.ours)

    @property
    def other_figure(self) -> Spread | None:
        """The figure of the other subject."""
        return spread(self.other) if self.other else None

    @property
    def ratio(self) -> Spread | None:
        """Ours divided by the other, pair by pair. None without another figure or beside zero."""
        if not self.other or not all(self.other):
            return None
        return spread([mine / other for mine, other in zip(self.ours, self.other, strict=True)])

    @property
    def judged(self) -> Spread:
        """The value that `bar` bounds."""
        return self.ratio or self.figure

    @property
    def met(self) -> bool:
        """True if the median reaches the bar, or if there is none."""
        if self.bar is None:
            return True
        value = self.judged.median
        return value >= self.bar if self.higher_is_better else value <= self.bar

    @property
    def verdict(self) -> str:
        """The word "met", or by how much the bar was missed; empty without a bar."""
        if self.bar is None or self.met:
            return "" if self.bar is None else "met"
        if not self.bar:
            return "missed"
        share = abs(self.judged.median / self.bar - 1)
        return f"missed by {share:.0%}" if share >= 0.01 else f"missed by {share:.1%}"


def column(results: Iterable[Mapping[str, float | None]], key: str) -> tuple[float, ...]:
    """Return one figure of each measurement, 0 where it has no value."""
    return tuple(each[key] or 0.0 for each in results)


def row_of(
    found: Mapping[str, Sequence[Mapping[str, float | None]]],
    ours: str,
    other: str,
    key: str,
    **options: Any,
) -> Row:
    """Return the row of one figure of two subjects.

    Args:
        found: The figures of each subject, as `Trial.in_turns` returns them.
        ours: Name of our subject in `found`.
        other: Name of the other subject; also the name in the table, unless `beside` is given.
        key: Name of the figure.
        options: More attributes of the row.
    """
    columns = {"ours": column(found[ours], key), "other": column(found[other], key)}
    return Row(**{"beside": other, **columns, **options})


def spread(values: Sequence[float]) -> Spread:
    """Return median and quartiles. A single value is returned as all three."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    return Spread(*statistics.quantiles(values, n=4, method="inclusive"))


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value at `share` (0 to 1) of the sorted values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def short(value: float) -> str:
    """Format a figure with three digits that count."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def spread_text(values: Spread) -> str:
    """Format the median, and the quartiles if they differ from it."""
    if values.low == values.high:
        return short(values.median)
    return f"{short(values.median)} ({short(values.low)} to {short(values.high)})"
