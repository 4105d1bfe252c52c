"""Memory and speed of the index of pending nacks, compared with the plain PIP-393 layout.

Every figure comes from a process of its own, as `nack_structures` says. "Plain" is due time ->
ledger -> Roaring bitmap as in PIP-393, in Python. Both layouts return consecutive ids together
(ours as ranges). The row "record and index" measures, with tracemalloc,
everything that the core keeps of a batch of ten with one message nacked and nine acked.
`nack_index_cpu` measures the time of both.

    make bench ONLY=pending_set
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import cache
from typing import Final

from pulsar_encore.core.due_index import precision_bits
from tests.harness.nacked_memory import bytes_per_nack

from .nack_structures import (
    PER_LEDGER,
    Arrivals,
    Measured,
    OurIndex,
    PlainLayout,
    Structure,
    in_order,
    measure,
)
from .own_process import in_own_process
from .rows import Row, short
from .trial import Benchmark, Trial

ENTRIES: Final = 10_000_000
SPREAD: Final = 200_000
#: Entries due in each millisecond, bits -> largest memory in MB.
SHAPES: Final = {(1, 10): 6.0, (4, 10): 2.0, (8, 10): 1.5, (8, 15): 0.6}
#: Name, case, and most bytes of a nack.
SPARSE: Final = (
    ("one in ten of 10 M, 1/ms, 10 bits", "tenth,1,10", 3.0),
    ("... after asking in every ledger", "asked,1,10", None),
    ("10 M, one entry in ten, 1/ms, 10 bits", "full,1,10", 3.0),
    ("one message in ten, batches of 10", "batch,1,10", None),
    ("200,000 over 1 s to 1 h, 64 ledgers", "spread", 16.0),
)
#: Cases that are measured with the plain layout of PIP-393 too.
PLAIN_CASES: Final = ("order,1,10", "tenth,1,10", "spread")


def one_in_ten(per_ms: int, bits: int, entries: int) -> Arrivals:
    """Yield the same stream with only one random entry in ten nacked."""
    rng = random.Random(11)
    for arrival in in_order(per_ms, bits, entries):
        if rng.random() < 0.1:
            yield arrival


def one_in_ten_full(per_ms: int, bits: int, entries: int) -> Arrivals:
    """Yield as many nacks as `in_order`, from ten times as many entries."""
    rng = random.Random(12)
    for i in range(entries):
        entry = i * 10 + rng.randrange(10)
        yield (entry // PER_LEDGER, entry % PER_LEDGER, -1), i // per_ms, bits


def in_batches(per_ms: int, bits: int, entries: int) -> Arrivals:
    """Yield entries of ten messages, with one random message in ten nacked."""
    rng = random.Random(13)
    for i in range(entries):
        if rng.random() < 0.1:
            yield (i // 10 // PER_LEDGER, i // 10 % PER_LEDGER, i % 10), i // per_ms, bits


@cache  # kept: a list freed during the fill would hide the index's memory
def shuffled() -> list[int]:
    """Return ids in random order."""
    return random.Random(14).sample(range(SPREAD), SPREAD)


def spread(fixed_bits: int | None) -> Arrivals:
    """Yield delays from 1 s to 1 h, with the ids of 64 ledgers in random order."""
    rng = random.Random(15)
    share = SPREAD // 64
    for i in shuffled():
        delay_ms = rng.randrange(1000, 3_600_000)
        yield (i // share, i % share, -1), delay_ms, precision_bits(delay_ms, fixed_bits)


def arrivals(case: str, plain: bool, entries: int) -> Arrivals:
    """Return the keys of a case, named `kind,x,y`."""
    kind, *numbers = case.split(",")
    if kind == "spread":
        return spread(8 if plain else None)
    make: dict[str, Callable[[int, int, int], Arrivals]] = {
        "order": in_order,
        "tenth": one_in_ten,
        "asked": one_in_ten,
        "full": one_in_ten_full,
        "batch": in_batches,
    }
    return make[kind](int(numbers[0]), int(numbers[1]), entries)


def measure_case(case: str, plain: bool, entries: int) -> Measured:
    """Fill, measure and drain one index, in this process."""

    def ask_everywhere(index: Structure) -> None:
        assert isinstance(index, OurIndex)
        asked = [(ledger, 7, -1) in index for ledger in range(entries // PER_LEDGER)]
        assert len(asked) > sum(asked)

    shuffled()  # before the memory is measured
    asks = case.startswith("asked") and not plain
    figures = measure(
        PlainLayout if plain else OurIndex,
        arrivals(case, plain, entries),
        after_fill=ask_everywhere if asks else None,
    )
    assert plain or figures.drained == figures.keys
    return figures


def run(trial: Trial) -> Iterator[Row]:
    """Measure each case once, in processes of their own. The bars are for ten million entries."""

    def of(case: str) -> list[Measured]:
        trial.step(case)
        layouts = (False, True) if case in PLAIN_CASES else (False,)
        return [_in_own_process(case, plain, ENTRIES) for plain in layouts]

    size = f"{ENTRIES / 1e6:g} M"
    for (per_ms, bits), bar in SHAPES.items():
        what = f"{size} in order, {per_ms}/ms, {bits} bits"
        yield _memory(what, "MB", [each.bytes / 1e6 for each in of(f"order,{per_ms},{bits}")], bar)
    for what, case, each_bar in SPARSE:
        found = of(case)
        yield _memory(what, "bytes each", [each.bytes / each.keys for each in found], each_bar)
    for what, messages in (("no batch", 1), ("in a batch of 10, 9 acked", 10)):
        weight = bytes_per_nack(messages)
        yield Row(what=f"record and index: {what}", unit="bytes each", ours=(weight,), bar=64.0)


def _memory(what: str, unit: str, figures: Sequence[float], bar: float | None) -> Row:
    """Return a row without a ratio: its bar is a bound of our memory."""
    ours, *plain = figures
    note = f"the plain layout: {short(plain[0])} {unit}" if plain else ""
    return Row(what=what, unit=unit, ours=(ours,), bar=bar, note=note)


def _in_own_process(case: str, plain: bool, entries: int) -> Measured:
    options = ("--case", case, "--entries", entries, *(["--plain"] if plain else []))
    return Measured(**in_own_process("pending_set", *options))


BENCHMARK: Final = Benchmark(
    name="pending_set",
    title="Memory of pending nacks",
    about=(
        "Growth of the resident memory while ten million entries are nacked, in order and "
        "scattered, measured once. The plain layout is that of PIP-393 in Python, for comparison "
        "in three rows."
    ),
    seconds=55,
    quick_s=None,
    run=run,
)


def main() -> int:
    """Measure one case in this process, and print it as JSON."""
    parser = argparse.ArgumentParser(description="One case of the memory of pending nacks.")
    parser.add_argument("--entries", type=int, default=ENTRIES)
    parser.add_argument("--case", required=True)
    parser.add_argument("--plain", action="store_true", help="the plain layout")
    options = parser.parse_args()
    print(json.dumps(asdict(measure_case(options.case, options.plain, options.entries))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
