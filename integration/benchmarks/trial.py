"""The conditions of a benchmark, and pairs that are measured in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from .rows import Row

T = TypeVar("T")

PAIRS: Final = 7
QUICK_PAIRS: Final = 3


class Pairs(NamedTuple):
    """Figures of two subjects, in the order of measurement."""

    ours: tuple[float, ...]
    other: tuple[float, ...]


@dataclass(kw_only=True)
class Trial:
    """How a benchmark is to run.

    Attributes:
        url: A broker that may be used, or None: a development broker is started.
        pairs: Number of pairs.
        quick: True if the benchmark must end within its `quick_s`: fewer messages, fewer shapes.
        step: Called with each part that begins, such as "batches of 10, pair 3 of 7".
    """

    url: str | None = None
    pairs: int = PAIRS
    quick: bool = False
    step: Callable[[str], None] = field(default=lambda _text: None)

    def sized(self, full: int, quick: int) -> int:
        """Return `full`, or `quick` for a quick run."""
        return quick if self.quick else full

    def alternate(self, what: str, ours: Callable[[], float], other: Callable[[], float]) -> Pairs:
        """Measure pairs; every second pair begins with the other subject."""
        figures = self.in_turns(what, {"ours": ours, "other": other})
        return Pairs(tuple(figures["ours"]), tuple(figures["other"]))

    def in_turns(self, what: str, subjects: Mapping[str, Callable[[], T]]) -> dict[str, list[T]]:
        """Measure each subject once in a round; every second round goes backwards.

        Returns:
            The results of each subject, one for each of the `pairs` rounds.
        """
        results: dict[str, list[T]] = {name: [] for name in subjects}
        order = list(subjects)
        for number in range(self.pairs):
            self.step(f"{what}, pair {number + 1} of {self.pairs}")
            for name in order:
                results[name].append(subjects[name]())
            order.reverse()
        return results


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One benchmark of `make bench`: the module's constant `BENCHMARK`.

    Attributes:
        name: Name of its module, for `ONLY=`.
        title: Heading in the report.
        about: A paragraph for readers of the report: the subjects and the workload.
        seconds: Duration on a usual machine with two cores, for the remaining time on the terminal.
        quick_s: The same with QUICK=1, or None if a quick run leaves it out.
        run: Yields its rows.
        available: Returns why the benchmark cannot run here, such as a missing program, or "".
    """

    name: str
    title: str
    about: str
    seconds: float
    quick_s: float | None
    run: Callable[[Trial], Iterable[Row]]
    available: Callable[[], str] = field(default=lambda: "")
