"""Memory and speed of the index of pending nacks, compared with the plain PIP-393 layout.

Every figure comes from a process of its own. Memory is the growth of the resident set while the
index is filled, after a garbage collection, and without returning freed pages to the system (no
malloc_trim). Keys are created as they are added, in a process that has done so before. "Plain" is
due time -> ledger -> Roaring bitmap as in PIP-393, in Python. Adding is timed over blocks of 1000
existing keys. Draining is timed over a clock that moves in a hundred steps. Both layouts return
consecutive ids together (ours as ranges). The row "record and index" measures, with tracemalloc,
everything that the core keeps of a batch of ten with one message nacked and nine acked.

    python -m integration.benchmarks.pending_set [--entries 10000000]
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import random
import statistics
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from itertools import islice
from time import perf_counter
from typing import NamedTuple

import psutil
from pyroaring import BitMap

from pulsar_encore.core.due_index import MessageKey, TimeBucketIndex, precision_bits
from tests.harness.nacked_memory import bytes_per_nack

ENTRIES = 10_000_000
PER_LEDGER = 50_000
SPREAD = 200_000
Arrivals = Iterator[tuple[MessageKey, int, int]]  # key, due in ms, precision bits


@dataclass(frozen=True)
class Row:
    """One line of the table; `bar` is None without a promise."""

    what: str
    unit: str
    figure: float
    plain: float
    bar: float | None
    higher_is_better: bool = False

    @property
    def met(self) -> bool:
        """True if the figure reaches the bar."""
        if self.bar is None:
            return True
        return self.figure >= self.bar if self.higher_is_better else self.figure <= self.bar


@dataclass(frozen=True)
class Measured:
    """The figures of one process."""

    keys: int
    bytes: int
    add_ns: float
    drain_per_s: float


class Filled(NamedTuple):
    """The number of added keys, the latest due time, and the median time of one `add`."""

    keys: int
    latest: int
    add_ns: float


class PlainLayout:
    """PIP-393's structure as specified: no membership test, no discards, due times rounded down."""

    def __init__(self) -> None:
        self._buckets: dict[int, dict[int, BitMap]] = {}

    def add(self, key: MessageKey, due_ms: int, bits: int) -> None:
        """Set the bit of an entry."""
        due_ms = due_ms >> bits << bits
        ledgers = self._buckets.get(due_ms)
        if ledgers is None:
            ledgers = self._buckets[due_ms] = {}
        entries = ledgers.get(key[0])
        if entries is None:
            entries = ledgers[key[0]] = BitMap()
        entries.add(key[1])

    def drain(self, now_ms: int) -> int:
        """Remove due ids as arrays. Return their number."""
        count = 0
        for due_ms in sorted(due_ms for due_ms in self._buckets if due_ms <= now_ms):
            for entries in self._buckets.pop(due_ms).values():
                count += len(entries.to_array())
        return count


def in_order(per_ms: int, bits: int, entries: int) -> Arrivals:
    """Yield consecutive entries, `per_ms` of them due in each millisecond."""
    for i in range(entries):
        yield (i // PER_LEDGER, i % PER_LEDGER, -1), i // per_ms, bits


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


def fill(add: Callable[[MessageKey, int, int], object], arrivals: Arrivals) -> Filled:
    """Add everything, in blocks of 1000 existing keys."""
    keys, latest = 0, 0
    times = array("d")  # a list of floats would need as much memory as some indexes
    while block := list(islice(arrivals, 1000)):
        start = perf_counter()
        for key, due_ms, bits in block:
            add(key, due_ms, bits)
        times.append((perf_counter() - start) / len(block))
        keys += len(block)
        latest = max(latest, max(arrival[1] for arrival in block))
    return Filled(keys, latest, statistics.median(times) * 1e9)


def measure(case: str, plain: bool, entries: int) -> Measured:
    """Fill, measure and drain one index, in this process."""
    scratch, index = TimeBucketIndex(), TimeBucketIndex()
    layout = PlainLayout()
    # so that no code is loaded and no memory block allocated later
    fill(scratch.add, in_order(1, 4, 10_000))
    scratch.clear()
    shuffled()
    gc.collect()
    process = psutil.Process()
    before = process.memory_info().rss

    filled = fill(layout.add if plain else index.add, arrivals(case, plain, entries))
    keys, latest = filled.keys, filled.latest
    if case.startswith("asked") and not plain:
        asked = [(ledger, 7, -1) in index for ledger in range(entries // PER_LEDGER)]
        assert len(asked) > sum(asked)
    gc.collect()
    weight = process.memory_info().rss - before

    drained, busy = 0, 0.0
    step = latest // 100 + 1
    for now_ms in range(step, latest + 2 * step + 2**16, step):
        start = perf_counter()
        if plain:
            drained += layout.drain(now_ms)
        else:
            drained += len(index.pop_due(now_ms))
        busy += perf_counter() - start
    assert plain or drained == keys
    return Measured(keys, weight, filled.add_ns, drained / busy)


def run(entries: int = ENTRIES) -> list[Row]:
    """Measure everything. The bars are meant for ten million entries."""
    rows: list[Row] = []

    def measured(case: str) -> tuple[Measured, Measured]:
        return _in_own_process(case, False, entries), _in_own_process(case, True, entries)

    def memory(what: str, case: str, bar: float | None, each: bool) -> None:
        ours, plain = measured(case)
        one, other = (ours.keys, plain.keys) if each else (1e6, 1e6)
        unit = "bytes each" if each else "MB"
        rows.append(Row(what, unit, ours.bytes / one, plain.bytes / other, bar))
        speeds.append((what, ours, plain))

    speeds: list[tuple[str, Measured, Measured]] = []
    size = f"{entries / 1e6:g} M"
    for per_ms, bits, bar in ((1, 10, 6.0), (4, 10, 2.0), (8, 10, 1.5), (8, 15, 0.6)):
        what = f"{size} in order, {per_ms}/ms, {bits} bits"
        memory(what, f"order,{per_ms},{bits}", bar, each=False)
    memory(f"one in ten of {size}, 1/ms, 10 bits", "tenth,1,10", 3.0, each=True)
    memory("... after asking in every ledger", "asked,1,10", None, each=True)
    memory(f"{size}, one entry in ten, 1/ms, 10 bits", "full,1,10", 3.0, each=True)
    memory("one message in ten, batches of 10", "batch,1,10", None, each=True)
    memory("200,000 over 1 s to 1 h, 64 ledgers", "spread", 16.0, each=True)
    for what, size in (("no batch", 1), ("in a batch of 10, 9 acked", 10)):
        weight = bytes_per_nack(size)
        rows.append(Row(f"record and index: {what}", "bytes each", weight, math.nan, 64.0))
    for what, ours, plain in (speeds[0], speeds[4], speeds[-1]):
        bar_ns = 1000.0 if "over" not in what else None
        rows.append(Row(f"add: {what}", "ns", ours.add_ns, plain.add_ns, bar_ns))
    for what, ours, plain in (speeds[0], speeds[4], speeds[6], speeds[-1]):
        bar_rate = 5.0 if "over" not in what else None
        rates = ours.drain_per_s / 1e6, plain.drain_per_s / 1e6
        rows.append(Row(f"drain: {what}", "M ids/s", *rates, bar_rate, higher_is_better=True))
    return rows


def table(rows: list[Row]) -> str:
    """Format the rows as text."""
    lines = [f"{'':52}{'':>11}{'ours':>9}{'plain':>9}{'bar':>7}"]
    for row in rows:
        bar = "" if row.bar is None else f"{row.bar:g}"
        verdict = "" if row.bar is None else "met" if row.met else "MISSED"
        figures = f"{row.figure:>9.3g}{row.plain:>9.3g}{bar:>7}  {verdict}"
        lines.append(f"{row.what:52}{row.unit:>11}{figures}".rstrip())
    return "\n".join(lines)


def _in_own_process(case: str, plain: bool, entries: int) -> Measured:
    command = [sys.executable, "-m", __spec__.name, "--case", case, "--entries", str(entries)]
    answer = subprocess.run(
        [*command, "--plain"] if plain else command, check=True, capture_output=True, text=True
    )
    return Measured(**json.loads(answer.stdout))


def main() -> int:
    """Print the table. Return 1 if a bar was missed, else 0."""
    parser = argparse.ArgumentParser(description="Memory and speed of the pending set.")
    parser.add_argument("--entries", type=int, default=ENTRIES)
    parser.add_argument("--case", help="measure one case here and print it as JSON")
    parser.add_argument("--plain", action="store_true", help="with --case: the plain layout")
    options = parser.parse_args()
    if options.case:
        print(json.dumps(asdict(measure(options.case, options.plain, options.entries))))
        return 0
    rows = run(options.entries)
    print(table(rows))
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
