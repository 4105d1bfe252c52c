"""Memory, restart and speed of the index of waiting ids that spills to disk, over their number.

Beside it are the index in memory and a table in SQLite, as an application would write one: a
primary key of ledger, entry and batch index, an index on the due time, write-ahead log, and a
commit for each thousand ids. Both write to disk without waiting for each fsync.

`fill` adds ids in order, each with a random delay from 1 ms to 7 days, and closes. `drain` is
another process. It opens the directory, reads the next due time, and takes everything in bursts of
1000, each marked as done, over a clock that moves in steps of about a thousand ids. The index in
memory is filled and drained in one process; after a restart it is empty. Memory is the largest
growth of the resident set since the imports, polled 50 times a second on a thread. Times of adds
and pops are CPU of the process, with the thread of the index that reads and writes segments, and
without the work of the benchmark. An id that is returned twice, or never, ends the program.

With `--nacks` the pattern is that of a consumer with the option `nack_index`: 10,000 nacks a
second, each for one hour, so that all ids are pending together. The ids are in random order within
each thousand, and are taken 500 at a time, as in a consumer. The same is measured with random
delays up to a week.

    make bench ONLY=spilling
    python -m integration.benchmarks.spilling [--ids 10000000] [--directory DIR] [--nacks]
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter, process_time, sleep, thread_time
from typing import Final, NamedTuple, Protocol

import psutil
from pyroaring import BitMap64

from pulsar_encore.core.due_index import MessageKey, TimeBucketIndex, precision_bits
from pulsar_encore.state import DirectoryBlobs, SpillingIndex
from pulsar_encore.state.blobs.transient_blobs import TransientBlobs

from .own_process import in_own_process
from .rows import Row, column, row_of, spread, spread_text
from .trial import Benchmark, Trial

WEEK_MS: Final = 7 * 24 * 3600 * 1000
HOUR_MS: Final = 3600 * 1000
START_MS: Final = 1_700_000_000_000
PER_LEDGER: Final = 50_000
BLOCK: Final = 1000
TAKEN_AT_ONCE: Final = 500  # as in `Redelivery`
NACKS_PER_MS: Final = 10
SPILLING, MEMORY, SQLITE = "spilling", "memory", "sqlite"
#: Number of ids -> largest number of pairs. The most ids have one pair, which takes minutes.
SIZES: Final = {100_000: 7, 300_000: 3, 10_000_000: 1}
SQLITE_MOST: Final = 1_000_000  # ten million rows take SQLite a quarter of an hour
Figures = dict[str, float]
Arrivals = Iterator[tuple[MessageKey, int, int]]


class Batch(Protocol):
    """Keys that were taken together."""

    @property
    def entries(self) -> Iterable[tuple[int, Iterable[int]]]:
        """Entries by ledger."""

    def __len__(self) -> int: ...


class SqliteBatch(NamedTuple):
    """Rows that were selected together."""

    rows: list[tuple[int, int, int]]

    @property
    def entries(self) -> list[tuple[int, tuple[int]]]:
        return [(ledger, (entry,)) for ledger, entry, _ in self.rows]

    def __len__(self) -> int:
        return len(self.rows)


class SqliteIndex:
    """Waiting ids in a table."""

    def __init__(self, directory: str) -> None:
        Path(directory).mkdir(exist_ok=True)
        self._db = sqlite3.connect(Path(directory) / "pending.sqlite")
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS pending (ledger INTEGER, entry INTEGER, batch INTEGER, "
            "due_ms INTEGER NOT NULL, PRIMARY KEY (ledger, entry, batch)) WITHOUT ROWID"
        )
        self._db.execute("CREATE INDEX IF NOT EXISTS by_due ON pending (due_ms)")
        self._uncommitted = 0

    def add(self, key: MessageKey, due_ms: int, _bits: int) -> None:
        """Insert a row, and commit each thousand."""
        self._db.execute("INSERT OR IGNORE INTO pending VALUES (?, ?, ?, ?)", (*key, due_ms))
        self._uncommitted += 1
        if self._uncommitted == BLOCK:
            self._uncommitted = 0
            self._db.commit()

    def next_due(self) -> int | None:
        """Return the earliest due time."""
        found: int | None = self._db.execute("SELECT min(due_ms) FROM pending").fetchone()[0]
        return found

    def pop_due(self, now_ms: int, limit: int) -> SqliteBatch:
        """Select rows that are due. `done` removes them."""
        return SqliteBatch(
            self._db.execute(
                "SELECT ledger, entry, batch FROM pending WHERE due_ms <= ? "
                "ORDER BY due_ms LIMIT ?",
                (now_ms, limit),
            ).fetchall()
        )

    def done(self, batch: SqliteBatch) -> None:
        """Delete the rows of a batch."""
        self._db.executemany(
            "DELETE FROM pending WHERE ledger = ? AND entry = ? AND batch = ?", batch.rows
        )
        self._db.commit()

    def close(self) -> None:
        self._db.commit()
        self._db.close()


Index = SpillingIndex | TimeBucketIndex | SqliteIndex


def arrivals(ids: int) -> Arrivals:
    """Yield keys with their due times and precisions."""
    rng = random.Random(7)
    for number in range(ids):
        delay_ms = 1 + int(rng.random() * WEEK_MS)
        key = (number // PER_LEDGER, number % PER_LEDGER, -1)
        yield key, START_MS + delay_ms, precision_bits(delay_ms)


def nacks(ids: int) -> Arrivals:
    """Yield keys in random order within each thousand, due an hour after their nack."""
    rng = random.Random(7)
    bits = precision_bits(HOUR_MS)
    for start in range(0, ids, BLOCK):
        numbers = list(range(start, min(start + BLOCK, ids)))
        rng.shuffle(numbers)
        for at, number in enumerate(numbers, start):
            key = (number // PER_LEDGER, number % PER_LEDGER, -1)
            yield key, START_MS + at // NACKS_PER_MS + HOUR_MS, bits


@contextmanager
def largest_growth(found: list[float]) -> Iterator[None]:
    """Append the largest growth of the resident set, in MiB."""
    gc.collect()
    process = psutil.Process()
    before, largest = process.memory_info().rss, [0]
    stop = threading.Event()

    def poll() -> None:
        while not stop.wait(0.02):
            largest[0] = max(largest[0], process.memory_info().rss - before)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        found.append(max(largest[0], process.memory_info().rss - before) / 2**20)


def stored_mib(directory: str) -> float:
    """Return the size of the directory, in MiB."""
    return sum(each.stat().st_size for each in os.scandir(directory)) / 2**20


class Cpu:
    """CPU time of this process, without the parts in `with cpu.without_me():`."""

    def __init__(self) -> None:
        self._start, self._thread_start, self._left_out = process_time(), thread_time(), 0.0

    @contextmanager
    def without_me(self) -> Iterator[None]:
        begun = thread_time()
        yield
        self._left_out += thread_time() - begun

    def us(self, ids: int) -> float:
        """Return the microseconds of each id."""
        return (process_time() - self._start - self._left_out) / ids * 1e6

    def thread_us(self, ids: int) -> float:
        """Return those of the calling thread alone."""
        return (thread_time() - self._thread_start - self._left_out) / ids * 1e6


class Check:
    """The ids that were returned. Ends the program at an id that was returned before."""

    def __init__(self) -> None:
        self._seen = BitMap64()

    def add(self, batch: Batch) -> None:
        numbers = BitMap64(
            [ledger * PER_LEDGER + entry for ledger, entries in batch.entries for entry in entries]
        )
        if len(numbers) != len(batch) or not self._seen.isdisjoint(numbers):
            raise SystemExit("an id was returned twice")
        self._seen |= numbers

    def end(self, ids: int) -> None:
        """End the program if an id was not returned."""
        if len(self._seen) != ids:
            raise SystemExit(f"{ids - len(self._seen)} ids were not returned")


def add_all(index: Index, pattern: Arrivals) -> Figures:
    """Add all ids."""
    growth: list[float] = []
    count, cpu, block = 0, Cpu(), [next(pattern)]
    with largest_growth(growth):
        while block:
            for key, due_ms, bits in block:
                index.add(key, due_ms, bits)
            count += len(block)
            with cpu.without_me():
                block = list(islice(pattern, BLOCK))
        if isinstance(index, SpillingIndex):
            while index.maintain():
                sleep(0.005)
    return {"add_us": cpu.us(count), "filled_mib": growth[0]}


def take_all(index: Index, ids: int, at_once: int) -> Figures:
    """Take all ids over a moving clock, and mark them as done."""
    growth: list[float] = []
    check = Check()
    with largest_growth(growth):
        cpu = Cpu()
        step = WEEK_MS // max(ids // BLOCK, 1)
        while (head := index.next_due()) is not None:
            now_ms = head + step
            while batch := index.pop_due(now_ms, at_once):
                index.done(batch)  # type: ignore[arg-type]
                with cpu.without_me():
                    check.add(batch)
        us, thread_us = cpu.us(ids), cpu.thread_us(ids)
    check.end(ids)
    return {"pop_us": us, "pop_thread_us": thread_us, "drained_mib": growth[0]}


def opened(subject: str, directory: str, executor: ThreadPoolExecutor) -> Index:
    """Open an index on disk."""
    if subject == SQLITE:
        return SqliteIndex(directory)
    return SpillingIndex(DirectoryBlobs(directory), executor=executor)


def stage(name: str, subject: str, directory: str, ids: int) -> Figures:
    """Run one stage in this process."""
    with ThreadPoolExecutor(1) as executor:
        executor.submit(int).result()
        if name == "nacks":
            pattern = nacks(ids) if directory.endswith("hour") else arrivals(ids)
            waiting: Index = TimeBucketIndex()
            if subject == SPILLING:
                blobs = TransientBlobs(Path(directory))
                waiting = SpillingIndex(blobs, executor=executor, transient=True, on_work=bool)
            return {**add_all(waiting, pattern), **take_all(waiting, ids, TAKEN_AT_ONCE)}
        if subject == MEMORY:
            memory = TimeBucketIndex()
            return {**add_all(memory, arrivals(ids)), **take_all(memory, ids, BLOCK)}
        if name == "fill":
            index = opened(subject, directory, executor)
            figures = add_all(index, arrivals(ids))
            index.close()  # type: ignore[union-attr]
            return {**figures, "stored_mib": stored_mib(directory)}
        start = perf_counter()
        index = opened(subject, directory, executor)
        head = index.next_due()
        open_ms = (perf_counter() - start) * 1e3
        if head is None:
            raise SystemExit("the index was empty after a restart")
        figures = take_all(index, ids, BLOCK)
        index.close()  # type: ignore[union-attr]
        return {**figures, "open_ms": open_ms}


def measured(name: str, subject: str, directory: str, ids: int) -> Figures:
    """Run one stage in a process of its own."""
    words = ("--stage", name, "--subject", subject, "--directory", directory, "--ids", ids)
    figures: Figures = in_own_process("spilling", *words)
    return figures


def life(subject: str, directory: str, ids: int) -> Figures:
    """Fill an index, and drain it after a restart."""
    path = os.path.join(directory, subject)
    try:
        figures = measured("fill", subject, path, ids)
        if subject != MEMORY:
            figures |= measured("drain", subject, path, ids)
    finally:
        shutil.rmtree(path, ignore_errors=True)
    figures["most_mib"] = max(figures["filled_mib"], figures["drained_mib"])
    figures["pop_per_s"] = 1e6 / figures["pop_us"]
    return figures


class Figure(NamedTuple):
    """A figure of the table; `beside` are the subjects that have it, except ours."""

    title: str
    unit: str
    key: str
    beside: tuple[str, ...]
    bar: float | None = None
    higher_is_better: bool = False


FIGURES: Final = (
    Figure("resident memory", "MiB", "most_mib", (MEMORY, SQLITE)),
    Figure("restart", "ms", "open_ms", (SQLITE,)),
    Figure("pops", "ids/s of CPU", "pop_per_s", (MEMORY, SQLITE), higher_is_better=True),
    Figure("CPU of a pop, calling thread", "us", "pop_thread_us", (MEMORY, SQLITE)),
    Figure("CPU of an add", "us", "add_us", (MEMORY, SQLITE)),
    Figure("on disk", "MiB", "stored_mib", (SQLITE,)),
)
#: Promises of the index: resident MiB and seconds of a restart, for up to 10 M ids.
MOST_MIB: Final = 60.0
MOST_RESTART_MS: Final = 1000.0
_BESIDE: Final = {MEMORY: "index in memory", SQLITE: "SQLite"}


def rows_of(ids: int, found: dict[str, list[Figures]]) -> Iterator[Row]:
    """Yield the rows of one number of ids."""
    size = size_of(ids)
    for figure in FIGURES:
        for subject in figure.beside:
            if subject not in found:
                continue
            yield row_of(
                *(found, SPILLING, subject, figure.key),
                what=f"{figure.title}, {size}",
                unit=figure.unit,
                beside=_BESIDE[subject],
                higher_is_better=figure.higher_is_better,
                chart=f"PIP-195: {figure.title} beside {_BESIDE[subject]}",
            )
    if ids >= max(SIZES):
        for key, bar in (("most_mib", MOST_MIB), ("open_ms", MOST_RESTART_MS)):
            figure = next(each for each in FIGURES if each.key == key)
            yield Row(
                what=f"{figure.title} of the spilling index, {size}",
                unit=figure.unit,
                ours=column(found[SPILLING], key),
                bar=bar,
            )


def lines_of(found: dict[int, dict[str, list[Figures]]]) -> Iterator[Row]:
    """Yield a row with a series for each figure and subject."""
    for figure in FIGURES[:3]:
        for subject in (SPILLING, *figure.beside):
            sizes = {
                ids: column(of_ids[subject], figure.key)
                for ids, of_ids in sorted(found.items())
                if subject in of_ids
            }
            largest = max(sizes)
            yield Row(
                what=f"{figure.title}, {_BESIDE.get(subject, subject)}: to {size_of(largest)}",
                unit=figure.unit,
                ours=sizes[largest],
                chart=f"PIP-195: {figure.title} over the number of ids",
                label=_BESIDE.get(subject, subject),
                series=tuple((float(ids), spread(each).median) for ids, each in sizes.items()),
                x_axis="waiting ids",
                y_axis=figure.unit,
            )


def size_of(ids: int) -> str:
    """Return the number of ids as text."""
    return f"{ids / 1e6:g} M ids"


def run(trial: Trial, sizes: Iterable[int] = (), directory: str | None = None) -> Iterator[Row]:
    """Measure all sizes; a quick run only the smallest."""
    chosen = list(sizes) or list(islice(SIZES, 1 if trial.quick else None))
    found: dict[int, dict[str, list[Figures]]] = {}
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        for ids in chosen:
            part = Trial(
                pairs=min(trial.pairs, SIZES.get(ids, 1)), quick=trial.quick, step=trial.step
            )
            found[ids] = part.in_turns(
                size_of(ids),
                {
                    name: partial(life, name, folder, ids)
                    for name in (SPILLING, MEMORY, SQLITE)
                    if name != SQLITE or ids <= SQLITE_MOST
                },
            )
            yield from rows_of(ids, found[ids])
    if len(found) > 1:
        yield from lines_of(found)


def run_nacks(ids: int, directory: str | None) -> Iterator[Row]:
    """Measure the nacks of a consumer once, spilling and in memory."""
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        for name, what in (("hour", "one delay of an hour"), ("week", "delays up to a week")):
            path = os.path.join(folder, name)
            found = {
                subject: measured("nacks", subject, path, ids) for subject in (SPILLING, MEMORY)
            }
            for title, unit, key in (
                ("resident, waiting", "MiB", "filled_mib"),
                ("a nack", "us", "add_us"),
                ("a take, each id", "us", "pop_us"),
            ):
                yield Row(
                    what=f"{what}: {title}",
                    unit=unit,
                    ours=(found[SPILLING][key],),
                    other=(found[MEMORY][key],),
                    beside=_BESIDE[MEMORY],
                )


BENCHMARK: Final = Benchmark(
    name="spilling",
    title="Waiting ids over their number: spilling to disk, in memory, SQLite",
    about=(
        "The index that spills to disk (after PIP-195) holds waiting ids with random delays up to "
        "7 days, beside the index in memory and a table in SQLite with an index on the due time. "
        "A restart is the time until the next due time is known in a new process. The index in "
        "memory is empty after a restart. Pops include marking the ids as done. SQLite is measured "
        "up to 300,000 ids, because ten million take it a quarter of an hour. Ten million are "
        "measured once, and 300,000 in at most three pairs."
    ),
    seconds=265,
    quick_s=15,
    run=run,
)


def main() -> None:
    """Print the rows of one size, or the JSON of one stage."""
    parser = argparse.ArgumentParser(description="Memory and speed of a spilling index.")
    parser.add_argument("--ids", type=int, default=10_000_000)
    parser.add_argument("--directory", help="where to spill; by default a temporary directory")
    parser.add_argument("--nacks", action="store_true", help="10,000 nacks a second for an hour")
    parser.add_argument("--stage", choices=("fill", "drain", "nacks"), help=argparse.SUPPRESS)
    parser.add_argument(
        "--subject", choices=(SPILLING, MEMORY, SQLITE), default=SPILLING, help=argparse.SUPPRESS
    )
    options = parser.parse_args()
    if options.stage:
        print(json.dumps(stage(options.stage, options.subject, options.directory, options.ids)))
        return
    trial = Trial(pairs=1)
    rows = (
        run_nacks(options.ids, options.directory)
        if options.nacks
        else run(trial, [options.ids], options.directory)
    )
    for row in rows:
        other = f"  {row.beside} {spread_text(row.other_figure)}" if row.other_figure else ""
        print(f"{row.what}: {spread_text(row.figure)} {row.unit}{other}")


if __name__ == "__main__":
    main()
