"""The rows that every benchmark returns: a figure, a comparison and a bar.

A bar is a promise of the project, and only `met` decides whether it is kept. Ratios compare figures
of one run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a table.

    Attributes:
        what: The measurement.
        unit: Unit of `figure`, `other` and `bar`.
        figure: The figure of this package.
        other: The figure of the stock client, or of the subject that `beside` names; None without
            one.
        bar: The promise in the same unit, or None.
        higher_is_better: True if the figure must be at least the bar, False if at most.
        beside: Name of the subject of `other`.
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
        """True if the figure reaches the bar."""
        if self.bar is None:
            return True
        return self.figure >= self.bar if self.higher_is_better else self.figure <= self.bar

    @property
    def ratio(self) -> float | None:
        """`figure` divided by `other`."""
        return self.figure / self.other if self.other else None


def table(rows: Sequence[Row]) -> str:
    """Format the rows as text."""
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
    """Print the rows. Return 1 if a bar was missed, else 0."""
    print(table(rows))
    return 0 if all(row.met for row in rows) else 1


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value at `share` (0 to 1) of the sorted values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
