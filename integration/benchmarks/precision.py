"""Memory and lateness of pending nacks with 0 to 16 precision bits, for dense and scattered times.

make bench ONLY=precision
"""

from __future__ import annotations

import json
import random
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from .nack_structures import (
    PER_LEDGER,
    STRUCTURES,
    Arrivals,
    Measured,
    OurIndex,
    Structure,
    in_order,
    measure,
)
from .own_process import in_own_process
from .rows import Row
from .trial import Benchmark, Trial

_JAVA_DEFAULT: Final = 8
_SCATTERED_OVER_MS: Final = (1000, 3_600_000)
_ASKED: Final = 10_000  # keys whose lateness is asked for


class Rounding(NamedTuple):
    """How much later than asked for nacks are due, in ms."""

    mean: float
    most: int


class Precision(NamedTuple):
    """Figures of one structure with one precision; `rounding` only of our index."""

    bytes_each: float
    rounding: Rounding | None


@dataclass(frozen=True, kw_only=True)
class Times:
    """Due times of one kind, of `entries` entries, or of `quick` in a quick run."""

    title: str
    entries: int
    quick: int


KINDS: Final = {
    "dense": Times(title="1 nack/ms, one delay", entries=500_000, quick=100_000),
    "scattered": Times(title="delays of 1 s to 1 h", entries=200_000, quick=50_000),
}
_BITS: Final = tuple(range(17))
_QUICK_BITS: Final = (0, 4, 8, 12, 16)


def arrivals(kind: str, bits: int, entries: int) -> Arrivals:
    """Yield consecutive entries with due times of a kind."""
    if kind == "dense":
        return in_order(1, bits, entries)
    rng = random.Random(15)
    return (
        ((i // PER_LEDGER, i % PER_LEDGER, -1), rng.randrange(*_SCATTERED_OVER_MS), bits)
        for i in range(entries)
    )


def rounding_of(index: OurIndex, kind: str, bits: int, entries: int) -> Rounding:
    """Return how much later than asked for the keys of a filled index are due.

    Raises:
        RuntimeError: if a key is due too early, or not at all.
    """
    late = []
    every = entries // _ASKED | 1  # odd: keys of all places within a bucket
    for number, (key, due_ms, _) in enumerate(arrivals(kind, bits, entries)):
        if number % every == 0:
            edge = index.due_of(key)
            if edge is None or not 0 <= edge - due_ms < 1 << bits:
                raise RuntimeError(f"{key} is due at {edge} instead of {due_ms}")
            late.append(edge - due_ms)
    return Rounding(statistics.fmean(late), max(late))


def measured(structure: str, kind: str, bits: int, entries: int) -> Precision:
    """Measure one structure, in this process."""
    found: list[Rounding] = []

    def ask(filled: Structure) -> None:
        if isinstance(filled, OurIndex):
            found.append(rounding_of(filled, kind, bits, entries))

    figures: Measured = measure(
        STRUCTURES[structure], arrivals(kind, bits, entries), after_fill=ask
    )
    return Precision(figures.bytes / entries, found[0] if found else None)


def run(trial: Trial) -> Iterator[Row]:
    """Measure each precision once: memory hardly differs from run to run."""
    for kind, times in KINDS.items():
        entries = trial.sized(times.entries, times.quick)
        memory: list[tuple[float, float]] = []
        rounding: list[tuple[float, float]] = []
        for bits in _QUICK_BITS if trial.quick else _BITS:
            trial.step(f"{kind}, {bits} bits")
            apart = partial(_apart, kind=kind, bits=bits, entries=entries)
            ours, plain = apart("index"), apart("plain")
            assert ours.rounding is not None
            memory.append((bits, ours.bytes_each))
            rounding.append((bits, ours.rounding.mean))
            yield Row(
                what=f"memory, {kind}, {bits} bits",
                unit="bytes each",
                ours=(ours.bytes_each,),
                other=(plain.bytes_each,),
                beside="PIP-393 in Python",
                note=(
                    f"due {ours.rounding.mean:,.0f} ms late on average, at most "
                    f"{ours.rounding.most:,} ms"
                ),
            )
        for what, unit, series in (
            ("memory", "bytes each", memory),
            ("rounding", "ms late on average", rounding),
        ):
            yield Row(
                what=f"{what} with {_JAVA_DEFAULT} bits: {kind}, {times.title}",
                unit=unit,
                ours=(dict(series)[_JAVA_DEFAULT],),
                chart=f"Precision: {what}",
                label=f"{kind}, {times.title}",
                series=tuple(series),
                x_axis="precision bits",
                y_axis=unit,
            )


def _apart(structure: str, *, kind: str, bits: int, entries: int) -> Precision:
    bytes_each, rounding = in_own_process("precision", structure, kind, bits, entries)
    return Precision(bytes_each, rounding and Rounding(*rounding))


BENCHMARK: Final = Benchmark(
    name="precision",
    title="Precision of due times and memory",
    about=(
        "A due time is rounded up to a multiple of 2^bits ms, so that a wider bucket has more "
        "nacks and each takes less memory. Half a million consecutive entries are due in each "
        "millisecond in turn, or 200,000 at random times within an hour. Both structures are in "
        "Python. That of PIP-393 rounds down, so that nacks are early by as much, and cannot tell "
        "whether a message is nacked. The index of this package can: scattered due times cost it "
        "memory for that."
    ),
    seconds=55,
    quick_s=12,
    run=run,
)


def main(arguments: list[str]) -> int:
    """Print the figures of one structure with one precision."""
    structure, kind, *numbers = arguments
    bits, entries = map(int, numbers)
    print(json.dumps(measured(structure, kind, bits, entries)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
