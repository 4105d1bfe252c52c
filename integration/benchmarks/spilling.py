"""Memory and speed of a spilling index: opening, adding and draining ids due over seven days.

Each stage is a process of its own. `fill` adds ids in order, each with a random delay from 1 ms to
7 days, and closes. `drain` opens the directory and takes everything in bursts of 1000, each marked
done, over a clock that moves in 10,000 steps. Memory is the largest resident set above that of the
same process after its imports, polled 50 times a second on a thread. A call is time that the event
loop waits for. The longest of millions of calls also contains work of other programs, so the CPU
time of its thread is printed beside it. The precision is the SDK's choice (2**bits ms is at most
1/64 of the delay), and 256 ms for all. An id that is returned twice, or never, ends the program.

With `--nacks` the pattern is that of a consumer with the option `nack_index`: 10,000 nacks a
second, each for one hour, so that all ids are pending together and each bucket has 327,680 of them.
The ids are in random order within each thousand. They are taken 500 at a time, as in a consumer,
and must be in order within a bucket. The same is measured with the index in memory, and with random
delays up to a week.

    python -m integration.benchmarks.spilling [--ids 10000000] [--directory DIR] [--inline]
        [--nacks]
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, sleep, thread_time

import psutil
from pyroaring import BitMap64

from integration.benchmarks.figures import Row, percentile, report
from pulsar_encore.core.due_index import DueIndex, MessageKey, TimeBucketIndex, precision_bits
from pulsar_encore.state import DirectoryBlobs, SpillingIndex
from pulsar_encore.state.blobs.transient_blobs import TransientBlobs

IDS = 10_000_000
WEEK_MS = 7 * 24 * 3600 * 1000
START_MS = 1_700_000_000_000
PER_LEDGER = 50_000
BURST = 1000
STEPS = 10_000
STAGES = (
    *("fill", "drain", "beside"),
    *("wait-memory", "wait-spilling", "wait-week-memory", "wait-week-spilling"),
)
BESIDE = 1_000_000  # ids for the index in memory


@dataclass(frozen=True)
class Measured:
    """The figures of one process."""

    ids: int
    seconds: float
    open_s: float
    rss_mib: float
    call_us: float
    slow_us: float  # 99.9 % of calls are faster
    longest_ms: float
    longest_cpu_ms: float
    stored_mib: float


def arrivals(ids: int, bits: int | None) -> Iterator[tuple[MessageKey, int, int]]:
    """Yield keys with their due times and precisions."""
    rng = random.Random(7)
    for number in range(ids):
        delay_ms = 1 + int(rng.random() * WEEK_MS)
        key = (number // PER_LEDGER, number % PER_LEDGER, -1)
        yield key, START_MS + delay_ms, precision_bits(delay_ms, bits)


@contextmanager
def largest_growth(found: list[float]) -> Iterator[None]:
    """Append the largest growth of the resident set, in MiB."""
    gc.collect()
    process = psutil.Process()
    before, max_buckets = process.memory_info().rss, [0]
    stop = threading.Event()

    def poll() -> None:
        while not stop.wait(0.02):
            max_buckets[0] = max(max_buckets[0], process.memory_info().rss - before)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        found.append(max(max_buckets[0], process.memory_info().rss - before) / 2**20)


class Calls:
    """Times of calls: sum and longest of all, and one in ten for percentiles."""

    def __init__(self) -> None:
        self.some = array("d")
        self.longest = self.longest_cpu = self.total = 0.0
        self.count = 0

    def add_call(self, seconds: float, cpu: float = 0.0) -> None:
        """Record one call: its duration and its CPU time."""
        self.longest_cpu = max(self.longest_cpu, cpu)
        self.count += 1
        self.total += seconds
        self.longest = max(self.longest, seconds)
        if not self.count % 10:
            self.some.append(seconds)


def stored_mib(directory: str) -> float:
    """Return the size of the directory, in MiB."""
    return sum(each.stat().st_size for each in os.scandir(directory)) / 2**20


def fill(directory: str, ids: int, bits: int | None, **options: object) -> Measured:
    """Add everything, then close."""
    growth: list[float] = []
    calls = Calls()
    start = perf_counter()
    with largest_growth(growth):
        index = SpillingIndex(DirectoryBlobs(directory), **options)  # type: ignore[arg-type]
        add = index.add
        for key, due_ms, width in arrivals(ids, bits):
            before, cpu = perf_counter(), thread_time()
            add(key, due_ms, width)
            calls.add_call(perf_counter() - before, thread_time() - cpu)
        assert len(index) == ids
        index.close()
    seconds = perf_counter() - start
    return measured(calls, seconds, 0.0, growth[0], directory, ids)


def drain(directory: str, ids: int, bits: int | None, **options: object) -> Measured:
    """Open the index and take everything."""
    growth: list[float] = []
    calls = Calls()
    seen = BitMap64()
    start = perf_counter()
    with largest_growth(growth):
        index = SpillingIndex(DirectoryBlobs(directory), **options)  # type: ignore[arg-type]
        head = index.next_due()
        opened = perf_counter() - start
        assert len(index) == ids and head is not None
        step = WEEK_MS // STEPS
        now_ms = START_MS
        while len(index):
            now_ms += step
            while True:
                before, cpu = perf_counter(), thread_time()
                batch = index.pop_due(now_ms, BURST)
                calls.add_call(perf_counter() - before, thread_time() - cpu)
                before, cpu = perf_counter(), thread_time()
                index.done(batch)
                calls.add_call(perf_counter() - before, thread_time() - cpu)
                if not batch:
                    break
                for ledger, entries in batch.entries:
                    numbers = BitMap64(entries)
                    numbers = numbers.shift(ledger * PER_LEDGER)
                    if not seen.isdisjoint(numbers):
                        raise SystemExit("an id was returned twice")
                    seen |= numbers
        if len(seen) != ids:
            raise SystemExit(f"{ids - len(seen)} ids were not returned")
        index.close()
    seconds = perf_counter() - start
    return measured(calls, seconds, opened, growth[0], directory, ids)


def measured(
    calls: Calls, seconds: float, opened: float, rss: float, directory: str, ids: int
) -> Measured:
    """Return the figures of a stage."""
    return Measured(
        ids=ids,
        seconds=seconds,
        open_s=opened,
        rss_mib=rss,
        call_us=calls.total / ids * 1e6,
        slow_us=percentile(calls.some, 0.999) * 1e6,
        longest_ms=calls.longest * 1e3,
        longest_cpu_ms=calls.longest_cpu * 1e3,
        stored_mib=stored_mib(directory),
    )


HOUR_MS = 3600 * 1000
NACKS_PER_MS = 10
NACKS_AT_ONCE = 1000
TAKEN_AT_ONCE = 500  # as in `Redelivery`


def nacks(ids: int) -> Iterator[tuple[MessageKey, int, int]]:
    """Yield keys in random order within each thousand, due an hour after their nack."""
    rng = random.Random(7)
    bits = precision_bits(HOUR_MS)
    for start in range(0, ids, NACKS_AT_ONCE):
        numbers = list(range(start, min(start + NACKS_AT_ONCE, ids)))
        rng.shuffle(numbers)
        for at, number in enumerate(numbers, start):
            key = (number // PER_LEDGER, number % PER_LEDGER, -1)
            yield key, START_MS + at // NACKS_PER_MS + HOUR_MS, bits


def wait(
    directory: str,
    ids: int,
    pattern: Iterator[tuple[MessageKey, int, int]],
    executor: ThreadPoolExecutor | None,
) -> list[Measured]:
    """Add nacks and take them all, in one process. Return the figures of both halves.

    Args:
        directory: Where to spill; empty for the index in memory.
        ids: Number of ids.
        pattern: Keys, due times and precisions.
        executor: Executor of the index.
    """
    index: DueIndex = TimeBucketIndex()
    maintain: Callable[[], object] = bool
    if directory:
        blobs = TransientBlobs(Path(directory))
        index = spilling = SpillingIndex(blobs, executor=executor, transient=True, on_work=bool)
        maintain = spilling.maintain
    found = []
    growth: list[float] = []
    calls = Calls()
    start = perf_counter()
    with largest_growth(growth):
        for key, due_ms, width in pattern:
            before, cpu = perf_counter(), thread_time()
            index.add(key, due_ms, width)
            index.next_due()  # a consumer calls this after each nack
            calls.add_call(perf_counter() - before, thread_time() - cpu)
        while maintain():
            sleep(0.005)
        assert len(index) == ids
    stored_in = directory or "."
    found.append(measured(calls, perf_counter() - start, 0.0, growth[0], stored_in, ids))
    calls, growth = Calls(), []
    seen = BitMap64()
    highest: dict[int, int] = {}
    start = perf_counter()
    with largest_growth(growth):
        while (head := index.next_due()) is not None:
            before, cpu = perf_counter(), thread_time()
            batch = index.pop_due(head, TAKEN_AT_ONCE)
            calls.add_call(perf_counter() - before, thread_time() - cpu)
            before, cpu = perf_counter(), thread_time()
            index.done(batch)
            calls.add_call(perf_counter() - before, thread_time() - cpu)
            for ledger, entries in batch.entries:
                numbers = BitMap64(entries).shift(ledger * PER_LEDGER)
                if not seen.isdisjoint(numbers):
                    raise SystemExit("an id was returned twice")
                if numbers.min() < highest.get(head, 0):
                    raise SystemExit("ids of a bucket are out of order")
                highest[head] = numbers.max()
                seen |= numbers
        if len(seen) != ids:
            raise SystemExit(f"{ids - len(seen)} ids were not returned")
    found.append(measured(calls, perf_counter() - start, 0.0, growth[0], stored_in, ids))
    return found


def beside(bits: int | None) -> float:
    """Return the microseconds of an add to the index in memory."""
    index = TimeBucketIndex()
    calls = Calls()
    for key, due_ms, width in arrivals(BESIDE, bits):
        before = perf_counter()
        index.add(key, due_ms, width)
        calls.add_call(perf_counter() - before)
    return calls.total / BESIDE * 1e6


def stage(
    name: str, directory: str, ids: int, bits: int | None, inline: bool, max_buckets: int
) -> int:
    """Run one stage in this process, and print JSON."""
    if name == "beside":
        print(json.dumps(beside(bits)))
        return 0
    if name.startswith("wait"):
        with ThreadPoolExecutor(1) as executor:
            executor.submit(int).result()
            pattern = arrivals(ids, None) if "week" in name else nacks(ids)
            stored_in = directory if name.endswith("spilling") else ""
            both = wait(stored_in, ids, pattern, None if inline else executor)
        print(json.dumps([asdict(each) for each in both]))
        return 0
    do: Callable[..., Measured] = {"fill": fill, "drain": drain}[name]
    with ThreadPoolExecutor(1) as executor:
        executor.submit(int).result()
        found = do(
            directory, ids, bits, executor=None if inline else executor, max_num_buckets=max_buckets
        )
    print(json.dumps(asdict(found)))
    return 0


def run(ids: int, directory: str, inline: bool, widths: list[str], max_buckets: int) -> list[Row]:
    """Measure everything."""
    rows: list[Row] = []
    for width in widths:
        path = os.path.join(directory, f"spilling-{width}")

        def run_stage(name: str, path: str = path, width: str = width) -> str:
            command = [sys.executable, "-m", __spec__.name, "--stage", name, "--ids", str(ids)]
            command += ["--directory", path, "--widths", width, "--most", str(max_buckets)]
            command += ["--inline"] if inline else []
            return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

        try:
            filled, drained = Measured(**json.loads(run_stage("fill"))), None
            drained = Measured(**json.loads(run_stage("drain")))
            memory = json.loads(run_stage("beside"))
        finally:
            shutil.rmtree(path, ignore_errors=True)
        what = f"{ids / 1e6:g} M, {'SDK widths' if width == 'sdk' else width + ' bits'}"
        resident = 60.0 if ids <= 10_000_000 else 200.0
        rows += [
            Row(
                what=f"{what}: add", unit="us", figure=filled.call_us, other=memory, beside="memory"
            ),
            Row(what=f"{what}: add, 99.9 % within", unit="us", figure=filled.slow_us),
            Row(what=f"{what}: add, longest", unit="ms", figure=filled.longest_ms),
            Row(what=f"{what}: add, longest, CPU", unit="ms", figure=filled.longest_cpu_ms),
            Row(what=f"{what}: resident, filling", unit="MiB", figure=filled.rss_mib, bar=resident),
            Row(what=f"{what}: on disk", unit="MiB", figure=filled.stored_mib),
            Row(what=f"{what}: opened", unit="s", figure=drained.open_s, bar=1.0),
            Row(what=f"{what}: pop and done, an id", unit="us", figure=drained.call_us),
            Row(what=f"{what}: pop or done, 99.9 % within", unit="us", figure=drained.slow_us),
            Row(what=f"{what}: pop or done, longest", unit="ms", figure=drained.longest_ms),
            Row(
                what=f"{what}: pop or done, longest, CPU", unit="ms", figure=drained.longest_cpu_ms
            ),
            Row(
                what=f"{what}: resident, draining",
                unit="MiB",
                figure=drained.rss_mib,
                bar=resident,
            ),
        ]
        print(f"{what}: filled in {filled.seconds:.0f} s, drained in {drained.seconds:.0f} s")
    return rows


def run_nacks(ids: int, directory: str, inline: bool) -> list[Row]:
    """Measure the pattern of nacks, in memory and spilling."""
    rows: list[Row] = []
    for name in STAGES[3:]:
        path = os.path.join(directory, name)
        command = [sys.executable, "-m", __spec__.name, "--stage", name, "--ids", str(ids)]
        command += ["--directory", path, *(["--inline"] if inline else [])]
        out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        shutil.rmtree(path, ignore_errors=True)
        halves = [Measured(**each) for each in json.loads(out)]
        for what, half in zip(("nack", "take and done"), halves, strict=True):
            title = f"{ids / 1e6:g} M, {name.removeprefix('wait-')}: {what}"
            rows += [
                Row(what=f"{title}, an id", unit="us", figure=half.call_us),
                Row(what=f"{title}, 99.9 % within", unit="us", figure=half.slow_us),
                Row(what=f"{title}, longest", unit="ms", figure=half.longest_ms),
                Row(what=f"{title}, longest, CPU", unit="ms", figure=half.longest_cpu_ms),
                Row(what=f"{title}, resident", unit="MiB", figure=half.rss_mib),
            ]
    return rows


def main() -> int:
    """Print the table. Return 1 if a bar was missed, else 0."""
    parser = argparse.ArgumentParser(description="Memory and speed of a spilling index.")
    parser.add_argument("--ids", type=int, default=IDS)
    parser.add_argument("--directory", help="where to spill; by default a temporary directory")
    parser.add_argument("--inline", action="store_true", help="use no background thread")
    parser.add_argument("--widths", nargs="+", default=["sdk", "8"], help="sdk, or bits")
    parser.add_argument("--most", type=int, default=-1, help="max_num_buckets")
    parser.add_argument("--stage", choices=STAGES, help="one stage, as JSON")
    parser.add_argument("--nacks", action="store_true", help="10,000 nacks a second for an hour")
    options = parser.parse_args()
    if options.stage:
        bits = None if options.widths[0] == "sdk" else int(options.widths[0])
        return stage(
            options.stage, options.directory, options.ids, bits, options.inline, options.most
        )
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        if options.nacks:
            return report(run_nacks(options.ids, directory, options.inline))
        return report(run(options.ids, directory, options.inline, options.widths, options.most))


if __name__ == "__main__":
    sys.exit(main())
