"""Structures for pending nacks, and the measurement of one of them in a process of its own.

Memory is the growth of the resident set while a structure is filled, after a garbage collection,
and without returning freed pages to the system (no malloc_trim). Keys are created as they are
added, in a process that has done so before. Times are CPU time, so that a busy machine changes them
less. Adding is timed over blocks of 1000 existing keys, and draining over a clock that moves in a
hundred steps.

The figures of a structure, as JSON:

    python -m integration.benchmarks.nack_structures {index,plain,heap,dict} PER_MS BITS ENTRIES \
        {drain,keep}
"""

from __future__ import annotations

import gc
import heapq
import json
import statistics
import sys
from array import array
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from time import process_time
from typing import Final, NamedTuple, Protocol

import psutil
from pyroaring import BitMap

from pulsar_encore.core.due_index import MessageKey, TimeBucketIndex

from .own_process import in_own_process

PER_LEDGER: Final = 50_000
Arrivals = Iterator[tuple[MessageKey, int, int]]  # key, due in ms, precision bits


@dataclass(frozen=True)
class Measured:
    """The figures of one process."""

    keys: int
    drained: int
    bytes: int
    add_ns: float
    drain_per_s: float


class Filled(NamedTuple):
    """The number of added keys, the latest due time, and the median time of one `add`."""

    keys: int
    latest: int
    add_ns: float


class Structure(Protocol):
    """Holds keys until they are due."""

    def add(self, key: MessageKey, due_ms: int, bits: int, /) -> object:
        """Add a key that is not in the structure."""

    def drain(self, now_ms: int, /) -> int:
        """Remove the keys that are due. Return their number."""


class OurIndex(TimeBucketIndex):
    """The index of this package. Consecutive ids are returned as ranges."""

    def drain(self, now_ms: int) -> int:
        return len(self.pop_due(now_ms))


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


class TripleHeap:
    """`heapq` of (due time, ledger, entry), with exact due times."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int]] = []

    def add(self, key: MessageKey, due_ms: int, bits: int) -> None:
        heapq.heappush(self._heap, (due_ms, key[0], key[1]))

    def drain(self, now_ms: int) -> int:
        heap, taken = self._heap, []
        while heap and heap[0][0] <= now_ms:
            taken.append(heapq.heappop(heap)[1:])
        return len(taken)


class DueTimes:
    """A dict of due times by (ledger, entry): every look at the time goes over all of them."""

    def __init__(self) -> None:
        self._due: dict[tuple[int, int], int] = {}

    def add(self, key: MessageKey, due_ms: int, bits: int) -> None:
        self._due[key[:2]] = due_ms

    def drain(self, now_ms: int) -> int:
        taken = [key for key, due_ms in self._due.items() if due_ms <= now_ms]
        for key in taken:
            del self._due[key]
        return len(taken)


STRUCTURES: Final[dict[str, Callable[[], Structure]]] = {
    "index": OurIndex,
    "plain": PlainLayout,
    "heap": TripleHeap,
    "dict": DueTimes,
}


def in_order(per_ms: int, bits: int, entries: int) -> Arrivals:
    """Yield consecutive entries, `per_ms` of them due in each millisecond."""
    for i in range(entries):
        yield (i // PER_LEDGER, i % PER_LEDGER, -1), i // per_ms, bits


def fill(add: Callable[[MessageKey, int, int], object], arrivals: Arrivals) -> Filled:
    """Add everything, in blocks of 1000 existing keys."""
    keys, latest = 0, 0
    times = array("d")  # a list of floats would need as much memory as some indexes
    while block := list(islice(arrivals, 1000)):
        start = process_time()
        for key, due_ms, bits in block:
            add(key, due_ms, bits)
        times.append((process_time() - start) / len(block))
        keys += len(block)
        latest = max(latest, max(arrival[1] for arrival in block))
    return Filled(keys, latest, statistics.median(times) * 1e9)


def measure(
    make: Callable[[], Structure],
    arrivals: Arrivals,
    *,
    after_fill: Callable[[Structure], None] | None = None,
    drain: bool = True,
) -> Measured:
    """Fill, measure and drain one structure, in this process.

    Args:
        make: Makes an empty structure.
        arrivals: The keys. Memory that its first key needs is not counted.
        after_fill: Called with the filled structure, before its memory is measured.
        drain: If False, measure memory and adding only. Large heaps take a minute to drain.
    """
    scratch, structure = make(), make()
    # so that no code is loaded and no memory block allocated later
    fill(scratch.add, in_order(1, 4, 10_000))
    del scratch
    gc.collect()
    process = psutil.Process()
    before = process.memory_info().rss

    keys, latest, add_ns = fill(structure.add, arrivals)
    if after_fill:
        after_fill(structure)
    gc.collect()
    weight = process.memory_info().rss - before

    if not drain:
        return Measured(keys, 0, weight, add_ns, 0.0)
    drained, busy = 0, 0.0
    step = latest // 100 + 1
    for now_ms in range(step, latest + 2 * step + 2**16, step):
        start = process_time()
        drained += structure.drain(now_ms)
        busy += process_time() - start
    return Measured(keys, drained, weight, add_ns, drained / busy)


def measured_apart(
    name: str, per_ms: int, bits: int, entries: int, *, drain: bool = True
) -> Measured:
    """Measure a structure, filled in order, in a process of its own."""
    end = "drain" if drain else "keep"
    figures = Measured(**in_own_process("nack_structures", name, per_ms, bits, entries, end))
    if drain and figures.drained != figures.keys:
        raise RuntimeError(f"{figures.drained} of {figures.keys} keys came out of {name}")
    return figures


def main(arguments: list[str]) -> int:
    """Print the figures of one structure."""
    name, *numbers, end = arguments
    per_ms, bits, entries = map(int, numbers)
    arrivals = in_order(per_ms, bits, entries)
    print(json.dumps(asdict(measure(STRUCTURES[name], arrivals, drain=end == "drain"))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
