"""What every benchmark hands over: rows of figure, what it is held against, and bar.

A bar is the promise; `met` compares and nothing else decides. Ratios are within one run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a table.

    Attributes:
        what: The measurement.
        unit: Of figure, other and bar.
        figure: This package's.
        other: The stock client's, or what `beside` names; None when there is none.
        bar: The promise in the same unit; None where nothing is promised.
        higher_is_better: Whether the figure has to be at least or at most the bar.
        beside: Whose figure `other` is.
    """

    what: str
    unit: str
    figure: float
    other: float | None = None
    bar: float | None = None
    higher_is_better: bool = False
    beside: str = ""

    @property
    def met(self) -> bool:
        """Whether the figure reaches the bar."""
        if self.bar is None:
            return True
        return self.figure >= self.bar if self.higher_is_better else self.figure <= self.bar

    @property
    def ratio(self) -> float | None:
        """Figure over other."""
        return self.figure / self.other if self.other else None


def table(rows: Sequence[Row]) -> str:
    """The rows as text."""
    lines = [f"{'':50}{'':>8}{'figure':>10}{'beside':>10}{'':>16}{'ratio':>8}{'bar':>10}"]
    for row in rows:
        other = "" if row.other is None else _short(row.other)
        ratio = "" if row.ratio is None else f"{row.ratio:.3g}"
        bar = "" if row.bar is None else _short(row.bar)
        verdict = "" if row.bar is None else "met" if row.met else "MISSED"
        lines.append(
            f"{row.what:50}{row.unit:>8}{_short(row.figure):>10}{other:>10}"
            f" {row.beside:15}{ratio:>8}{bar:>10}  {verdict}".rstrip()
        )
    return "\n".join(lines)


def report(rows: Sequence[Row]) -> int:
    """Print the rows; the exit code says whether every bar was met."""
    print(table(rows))
    return 0 if all(row.met for row in rows) else 1


def percentile(values: Sequence[float], share: float) -> float:
    """The value at `share` (0 to 1) of the sorted values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
