"""PIP-393's example of growth: 10,000 nacks a second with delays of one and of five hours.

The five hours have a tenth of the rate, because 200 million nacks take minutes. Memory grows
steadily with the time. The points of a whole stream, as JSON:

    make bench ONLY=nack_growth
    python -m integration.benchmarks.nack_growth 18000 1 10000  # delay in s, APART, nacks a second
"""

from __future__ import annotations

import gc
import json
import random
import sys
from collections.abc import Iterator
from itertools import repeat
from typing import Final, NamedTuple

import psutil

from pulsar_encore.core.due_index import TimeBucketIndex, precision_bits

from .nack_structures import PER_LEDGER, measured_apart
from .own_process import in_own_process
from .rows import Row
from .trial import Benchmark, Trial

_PER_S: Final = 10_000
_QUICK_PER_S: Final = 100
_MINUTE_S: Final = 60
_HEAP_ENTRIES: Final = 1_000_000
_SAMPLES: Final = 25
_OVERTIME: Final = 1.1  # times the delay, so that nacks are due in the last part


class Stream(NamedTuple):
    """Nacks with one delay; one entry in `apart` is nacked, at the full rate or a `part` of it."""

    delay_s: int
    apart: int
    part: float = 1.0

    @property
    def title(self) -> str:
        """Name in the table."""
        entries = "each entry" if self.apart == 1 else f"one random entry in {self.apart}"
        return f"{entries}, delay of {self.delay_s // 3600} h"


STREAMS: Final = (Stream(3600, 1), Stream(3600, 10), Stream(5 * 3600, 1, 0.1))
_QUICK_STREAMS: Final = STREAMS[:2]


def grow(stream: Stream, per_s: int) -> list[tuple[float, float]]:
    """Simulate the nacks on the index of this package, in this process.

    Returns:
        (minutes, growth of the resident set in MB) of the whole time.

    Raises:
        RuntimeError: if another number of nacks waits than have not been due.
    """
    scratch = TimeBucketIndex()
    _second(scratch, 0, stream, 10_000, random.Random(1))
    scratch.pop_due(10 * stream.delay_s * 1000)
    gc.collect()
    process = psutil.Process()
    before = process.memory_info().rss
    index, rng = TimeBucketIndex(), random.Random(2)
    bucket_s = (1 << precision_bits(stream.delay_s * 1000)) / 1000
    end_s = int(stream.delay_s * _OVERTIME)
    points = []
    for second in range(end_s):
        _second(index, second, stream, per_s, rng)
        index.pop_due(second * 1000)
        if (second + 1) % (end_s // _SAMPLES) == 0:
            gc.collect()
            grown = process.memory_info().rss - before
            points.append(((second + 1) / _MINUTE_S, grown / 1e6))
    waiting_s = len(index) / per_s
    if not min(end_s, stream.delay_s) <= waiting_s <= stream.delay_s + bucket_s + 1:
        raise RuntimeError(f"{len(index):,} nacks wait after {end_s} s")
    return points


def _second(
    index: TimeBucketIndex, second: int, stream: Stream, per_s: int, rng: random.Random
) -> None:
    """Add the nacks of one second."""
    delay_ms = stream.delay_s * 1000
    bits = precision_bits(delay_ms)
    add, apart = index.add, stream.apart
    first = second * per_s
    steps = repeat(0, per_s) if apart == 1 else map(int, rng.choices(range(apart), k=per_s))
    for number, step in enumerate(steps):
        ledger, entry = divmod((first + number) * apart + step, PER_LEDGER)
        add((ledger, entry, -1), second * 1000 + number * 1000 // per_s + delay_ms, bits)


def waiting(minutes: float, stream: Stream, per_s: int) -> float:
    """Return how many nacks wait at a time, if exact due times are kept."""
    return per_s * min(minutes * _MINUTE_S, stream.delay_s)


def run(trial: Trial) -> Iterator[Row]:
    """Simulate each stream once."""
    full_rate = trial.sized(_PER_S, _QUICK_PER_S)
    trial.step("memory of a heap of triples")
    heap_bytes = measured_apart("heap", 10, 0, trial.sized(_HEAP_ENTRIES, 200_000), drain=False)
    heap_each = heap_bytes.bytes / heap_bytes.keys
    for stream in _QUICK_STREAMS if trial.quick else STREAMS:
        trial.step(stream.title)
        per_s = round(full_rate * stream.part)
        points = in_own_process("nack_growth", stream.delay_s, stream.apart, per_s)
        heap = [(at, waiting(at, stream, per_s) * heap_each / 1e6) for at, _ in points]
        largest, heap_largest = max(mb for _, mb in points), max(mb for _, mb in heap)
        chart = f"Memory with {per_s:,} nacks a second, delay of {stream.delay_s // 3600} h"
        yield Row(
            what=f"largest memory, {per_s:,} nacks/s, {stream.title}",
            unit="MB",
            ours=(largest,),
            label=stream.title,
            other=(heap_largest,),
            beside="heap of triples",
            chart=chart,
            note=(
                f"{largest * 1e6 / waiting(points[-1][0], stream, per_s):.3g} bytes for each nack "
                f"that waits; the heap is extrapolated with {heap_each:.0f} bytes"
            ),
            series=tuple((at, grown) for at, grown in points),
            x_axis="simulated minutes",
            y_axis="MB",
        )
        if stream.apart == 1:  # the heap's memory does not depend on the distance of the ids
            yield Row(
                what=(
                    f"heap of triples: largest memory, {per_s:,} nacks/s, "
                    f"delay of {stream.delay_s // 3600} h"
                ),
                unit="MB",
                ours=(heap_largest,),
                label="heap of triples",
                chart=chart,
                note=f"extrapolated with {heap_each:.0f} bytes for each nack",
                series=tuple(heap),
                x_axis="simulated minutes",
                y_axis="MB",
            )


BENCHMARK: Final = Benchmark(
    name="nack_growth",
    title="Growth of pending nacks",
    about=(
        "The example of PIP-393: 10,000 nacks a second with a delay of one hour, and of five "
        "hours. The PIP calculates 1.77 and 8.88 GB for the Java client before it (53 bytes each). "
        "Here the index of this package is filled and drained in simulated time, with the default "
        "precision; a tenth of the delay runs after the first nack was due. The five hours have "
        "1,000 nacks a second, to save time. A quick run has 100. The heap of triples is not "
        "filled: its memory is calculated from a million triples."
    ),
    seconds=85,
    quick_s=8,
    run=run,
)


def main(arguments: list[str]) -> int:
    """Simulate one stream, and print its points."""
    delay_s, apart, per_s = map(int, arguments)
    print(json.dumps(grow(Stream(delay_s, apart), per_s)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
