"""State in RocksDB: leases, pending and changed messages, beside the method of RIP-73.

Every measurement has a process and a directory of its own. "RIP-73" is RocketMQ's layout and order
of work on the same RocksDB with the same options (see `rip73.py`). Neither side fsyncs.

- leases: messages are delivered in steps of 32 each 10 ms, by the given clock, with leases of 60 s.
  "fast" acks come 2 s later, and one in a hundred after 30 s. "slow" acks all come after 30 s. With
  "change of invisible time", each lease is changed after 1 s and acked after 2 s. The buffer holds
  records for 10 s (`count_attempts="lazy"`); without it each delivery is written before it happens
  (`"before"`). "batches of 1000" are acked by the entry.
- expiry: messages of 20 ledgers in order, all due within a minute. Their due times pass 500 at a
  time, as the consumer takes them from its index in memory, and they are acked. Opening is the
  first work of the next process.
- due times: pending messages get another due time, five times each. Either one after the other, a
  minute from then (as leases are renewed), or any of them, between 1 s and 1 h, at random. 100
  changes share a write, or each has its own.
- CPU is that of the process, with RocksDB's threads. Bytes and writes are those that the process
  gave to the operating system, also for compactions (Linux only).
- memory: the growth of the resident set, with RocksDB's own memory. A million messages, one pair,
  because the result hardly differs between runs.

    make bench ONLY=rocks_state
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Final, NamedTuple, Protocol

import psutil

from pulsar_encore.core.bucket_width import precision_bits
from pulsar_encore.core.due_index import TimeBucketIndex
from pulsar_encore.core.message_key import MessageKey
from pulsar_encore.state.rocks import DeliveredRecord, RocksStore, TopicStore

from .own_process import in_own_process
from .rip73 import Rip73
from .rows import Row, column, row_of
from .trial import Benchmark, Trial

NOW: Final = 1_800_000_000_000
LEASES: Final = 30_000
PENDING: Final = 50_000
CHANGES: Final = 20_000
KEYS: Final = 1_000_000  # fewer would share the constant memory of RocksDB
BURST: Final = 500
STEP_MS: Final = 10
AT_ONCE: Final = 32  # a pop of RocketMQ takes at most 32
LEASE_MS: Final = 60_000
OURS, RIP = "pulsar-encore", "RIP-73"
Figures = dict[str, float]


class Pattern(NamedTuple):
    """When leases are changed and acked, in ms after their delivery; 0 for no change."""

    ack_ms: int
    one_in_hundred_ms: int
    change_ms: int = 0


PATTERNS: Final = {
    "fast acks": Pattern(2_000, 30_000),
    "slow acks": Pattern(30_000, 30_000),
    "change of invisible time": Pattern(2_000, 2_000, 1_000),
}


class LeaseSubject(Protocol):
    """Records of leases. The messages of an entry are delivered and acked together."""

    def deliver(self, entries: Sequence[int], now_ms: int) -> None:
        """Record deliveries."""

    def change(self, entry: int, now_ms: int) -> None:
        """Record that a lease ends `LEASE_MS` from now."""

    def ack(self, entry: int) -> None:
        """Remove a record."""

    def tick(self, now_ms: int) -> None:
        """Do periodic work."""

    def close(self) -> None:
        """Write everything."""


class OurLeases:
    """The records of a consumer with state."""

    def __init__(self, path: Path, *, buffered: bool, size: int) -> None:
        mode = "lazy" if buffered else "before"
        self._store, topic_store = opened(path, count_attempts=mode)
        self._records = topic_store.records
        self._size, self._mask = size, (1 << size) - 1

    def deliver(self, entries: Sequence[int], now_ms: int) -> None:
        size, mask = self._size, self._mask
        self._records.record_deliveries(
            [DeliveredRecord(1, entry, size, mask) for entry in entries], now_ms
        )

    def change(self, entry: int, now_ms: int) -> None:
        self._records.record_lease((1, entry, -1), now_ms + LEASE_MS, 1, now_ms)

    def ack(self, entry: int) -> None:
        self._records.record_ack(1, entry)

    def tick(self, now_ms: int) -> None:
        self._records.flush(now_ms)

    def close(self) -> None:
        self._store.flush()
        if len(self._records):
            raise SystemExit(f"{len(self._records)} records were left")
        self._store.close()


class RipLeases:
    """RocketMQ's pop records. The handle of a lease contains its due time."""

    def __init__(self, path: Path, *, buffered: bool, size: int) -> None:
        self._rip = Rip73(path, buffered=buffered)
        self._due: dict[int, int] = {}

    def deliver(self, entries: Sequence[int], now_ms: int) -> None:
        due_ms = now_ms + LEASE_MS
        self._due.update(dict.fromkeys(entries, due_ms))
        self._rip.pop(due_ms, [(1, entry) for entry in entries], now_ms)

    def change(self, entry: int, now_ms: int) -> None:
        self._rip.change(self._due[entry], now_ms + LEASE_MS, (1, entry))
        self._due[entry] = now_ms + LEASE_MS

    def ack(self, entry: int) -> None:
        self._rip.ack(self._due.pop(entry), (1, entry))

    def tick(self, now_ms: int) -> None:
        self._rip.sweep(now_ms)

    def close(self) -> None:
        self._rip.database.close()


def leases(
    path: Path, count: int, *, side: str, pattern: str, buffered: bool, size: int = 1
) -> Figures:
    """Measure `count` leases in entries of `size` messages."""
    made = OurLeases if side == OURS else RipLeases
    subject: LeaseSubject = made(path, buffered=buffered, size=size)
    times, at_once = PATTERNS[pattern], AT_ONCE if size == 1 else 1
    changes: dict[int, list[int]] = {}
    acks: dict[int, list[int]] = {}
    entries, now_ms = count // size, NOW
    before, cpu = written(), process_time()
    at = 0
    while at < entries or changes or acks:
        some = range(at, min(at + at_once, entries))
        at += len(some)
        for entry in some:
            wait = times.one_in_hundred_ms if entry % 100 == 99 else times.ack_ms
            acks.setdefault(now_ms + wait, []).append(entry)
        if times.change_ms and some:
            changes[now_ms + times.change_ms] = list(some)
        if some:
            subject.deliver(some, now_ms)
        for entry in changes.pop(now_ms, ()):
            subject.change(entry, now_ms)
        for entry in acks.pop(now_ms, ()):
            subject.ack(entry)
        subject.tick(now_ms)
        now_ms += STEP_MS
    subject.close()
    cpu = process_time() - cpu
    after = written()
    return {
        "us": cpu / count * 1e6,
        "bytes": (after[0] - before[0]) / count,
        "writes": (after[1] - before[1]) / count,
    }


def written() -> tuple[int, int]:
    """Return the bytes and the calls with which this process wrote; zeros where unknown."""
    found = psutil.Process()
    if not hasattr(found, "io_counters"):
        return 0, 0
    counters = found.io_counters()
    return int(getattr(counters, "write_chars", 0)), int(counters.write_count)


def key_of(number: int, count: int) -> MessageKey:
    """Return the key of an entry in one of 20 ledgers."""
    share = max(count // 20, 1)
    return number // share, number % share, -1


def fingerprint_of(key: MessageKey) -> int:
    """Return a fingerprint that is different for each entry."""
    return ((key[0] << 32 | key[1]) * 0x9E3779B97F4A7C15 & 2**64 - 1) or 1


def opened(path: Path, **options: Any) -> tuple[RocksStore, TopicStore]:
    """Open a store and its only topic."""
    store = RocksStore(path, wall_now_ms=NOW)
    topic_store = store.topic_store("persistent://public/default/orders", "billing", **options)
    return store, topic_store


def size_of(path: Path) -> int:
    """Return the bytes on disk."""
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())


def rss() -> int:
    """Return the resident bytes of this process."""
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def waits(count: int, spread_ms: int, mixed: bool) -> Iterator[tuple[MessageKey, int, int]]:
    """Yield messages with their due times: in order, spread over a period; or mixed, 1 s up to
    it.
    """
    rng = random.Random(3)
    for at in range(count):
        # a prime reaches all numbers, far from each other
        number = at * 7919 % count if mixed else at
        delay = rng.randrange(1000, spread_ms) if mixed else spread_ms * at // count
        yield key_of(number, count), NOW + delay, precision_bits(delay)


def fill(
    store: RocksStore, topic_store: TopicStore, count: int, spread_ms: int, mixed: bool
) -> None:
    """Add pending messages, 100 in a write."""
    nack, rows = topic_store.records.record_nack, waits(count, spread_ms, mixed)
    while some := list(islice(rows, 100)):
        with store.batched_writes():
            for key, due_ms, bits in some:
                nack(key, due_ms, 1, NOW, bits=bits, fingerprint=fingerprint_of(key))


def expiry(path: Path, count: int) -> Figures:
    """Measure messages that are due within a minute."""
    store, topic_store = opened(path)
    fill(store, topic_store, count, 60_000, mixed=False)
    store.close()
    start = perf_counter()
    store, topic_store = opened(path)
    opening = perf_counter() - start
    records = topic_store.records
    keys = [key for key, *_ in waits(count, 60_000, mixed=False)]
    cpu = process_time()
    for at in range(0, count, BURST):
        some = keys[at : at + BURST]
        records.record_due(some)
        for ledger, entry, _ in some:
            records.record_ack(ledger, entry)
    store.flush()
    cpu = process_time() - cpu
    if len(records) or records.waiting:
        raise SystemExit("records were left")
    store.close()
    return {"us": cpu / count * 1e6, "open_us": opening / count * 1e6}


def rip_expiry(path: Path, count: int) -> Figures:
    """Measure the same with RocketMQ's method."""
    rip = Rip73(path)
    for at in range(0, count, 100):
        numbers = range(at, min(at + 100, count))
        rip.put([(NOW + 60_000 * n // count, key_of(n, count)[:2]) for n in numbers])
    cpu = process_time()
    found = rip.revive(NOW + 120_000)
    cpu = process_time() - cpu
    if found != count:
        raise SystemExit(f"{found} of {count} records were revived")
    return {"us": cpu / count * 1e6}


def moves_of(count: int, mixed: bool) -> list[tuple[MessageKey, int, int]]:
    """Return changes of due times: in order to a minute from then, or at random within an hour."""
    rng = random.Random(4)
    moves = []
    for at in range(5 * count):
        delay = rng.randrange(1000, 3_600_000) if mixed else 60_000
        number = rng.randrange(count) if mixed else at % count
        now = NOW if mixed else NOW + at // 10
        moves.append((key_of(number, count), now + delay, precision_bits(delay)))
    gc.freeze()  # half a million objects of the benchmark would slow down collections
    return moves


def changes(path: Path, count: int, *, each: int, mixed: bool) -> Figures:
    """Measure changes of due times, `each` in one write."""
    store, topic_store = opened(path)
    fill(store, topic_store, count, 3_600_000, mixed)
    moves, nack = moves_of(count, mixed), topic_store.records.record_nack
    cpu = process_time()
    for at in range(0, len(moves), each):
        with store.batched_writes():
            for key, due_ms, bits in moves[at : at + each]:
                nack(key, due_ms, 1, NOW, bits=bits)
    cpu = process_time() - cpu
    store.close()
    return {"us": cpu / len(moves) * 1e6}


def memory_changes(path: Path, count: int, *, mixed: bool) -> Figures:
    """Measure the same changes in memory only."""
    index = TimeBucketIndex()
    for row in waits(count, 3_600_000, mixed):
        index.add(*row)
    moves = moves_of(count, mixed)
    cpu = process_time()
    for key, due_ms, bits in moves:
        index.move(key, due_ms, bits)
    return {"us": (process_time() - cpu) / len(moves) * 1e6}


def rip_changes(path: Path, count: int) -> Figures:
    """Measure a new record, then the removal of the old one, with a write each."""
    rip = Rip73(path)
    moves = moves_of(count, mixed=True)
    due = {key_of(n, count)[:2]: NOW + 1000 * n for n in range(count)}
    rows = [(due_ms, key) for key, due_ms in due.items()]
    for at in range(0, count, 100):
        rip.put(rows[at : at + 100])
    cpu = process_time()
    for (ledger, entry, _), new_ms, _ in moves:
        rip.change(due[ledger, entry], new_ms, (ledger, entry))
        due[ledger, entry] = new_ms
    return {"us": (process_time() - cpu) / len(moves) * 1e6}


def weight(path: Path, count: int, *, mixed: bool, stored: bool) -> Figures:
    """Return the bytes of each pending key: in memory, and on disk after a close."""
    spread_ms = 3_600_000 if mixed else 60_000
    store, topic_store = opened(path)
    fill(store, topic_store, 1000, spread_ms, mixed)  # so that no code is loaded later
    topic_store.records.clear()
    index = TimeBucketIndex()
    before = rss()
    if stored:
        fill(store, topic_store, count, spread_ms, mixed)
    else:
        for row in waits(count, spread_ms, mixed):
            index.add(*row)
    memory = (rss() - before) / count
    store.close()
    return {"memory": memory, "disk": size_of(path / "db") / count}


CASES: Final[dict[str, Callable[..., Figures]]] = {
    each.__name__: each
    for each in (leases, expiry, rip_expiry, changes, memory_changes, rip_changes, weight)
}


def measured(case: str, count: int, **parameters: Any) -> Figures:
    """Run one case in a process of its own."""
    words = ("--case", case, "--count", count, "--parameters", json.dumps(parameters))
    figures: Figures = in_own_process("rocks_state", *words)
    return figures


#: Title, unit and key of a figure of `leases`.
_LEASE_FIGURES: Final = (
    ("CPU", "us/msg", "us"),
    ("bytes written", "B/msg", "bytes"),
    ("writes", "/msg", "writes"),
)
_CHART: Final = "RIP-73: leases, "


def lease_rows(trial: Trial) -> Iterator[Row]:
    """Measure our leases with and without the buffer, and those of RIP-73."""
    count = trial.sized(LEASES, LEASES // 2)
    sides = (OURS,) if trial.quick else (OURS, RIP)
    for pattern in islice(PATTERNS, 2 if trial.quick else None):
        subjects = {
            (side, buffered): partial(
                measured, "leases", count, side=side, pattern=pattern, buffered=buffered
            )
            for side in sides
            for buffered in (True, False)
        }
        names = {f"{side}, {buffered}": call for (side, buffered), call in subjects.items()}
        found = trial.in_turns(f"leases, {pattern}", names)
        for title, unit, key in _LEASE_FIGURES:
            if not any(column(found[f"{OURS}, False"], key)):
                continue  # the system does not count writes
            yield row_of(
                *(found, f"{OURS}, True", f"{OURS}, False", key),
                what=f"{pattern}: {title}, with the buffer",
                unit=unit,
                beside="without the buffer",
                chart=_CHART + title,
            )
            for buffered in (True, False) if RIP in sides else ():
                how = "with" if buffered else "without"
                yield row_of(
                    *(found, f"{OURS}, {buffered}", f"{RIP}, {buffered}", key),
                    what=f"{pattern}: {title}, {how} the buffer",
                    unit=unit,
                    beside=f"RIP-73 {how} it",
                    chart=_CHART + title,
                )


def batch_rows(trial: Trial) -> Iterator[Row]:
    """Measure leases of whole batches."""
    call = partial(measured, "leases", 20 * LEASES, side=OURS, pattern="fast acks", size=1000)
    found = trial.in_turns(
        "leases, batches of 1000",
        {"with": partial(call, buffered=True), "without": partial(call, buffered=False)},
    )
    yield row_of(
        *(found, "with", "without", "us"),
        what="fast acks, batches of 1000: CPU, with the buffer",
        unit="us/msg",
        beside="without the buffer",
        chart=_CHART + "CPU",
    )


def due_rows(trial: Trial) -> Iterator[Row]:
    """Measure due times that pass, and due times that change."""
    ours, rip = partial(measured, "expiry", PENDING), partial(measured, "rip_expiry", PENDING)
    found = trial.in_turns("expiry", {OURS: ours, RIP: rip})
    chart = "Due times in RocksDB: CPU"
    yield row_of(
        *(found, OURS, RIP, "us"),
        what="due within a minute, passed and acked",
        unit="us/msg",
        bar=1.0,
        chart=chart,
    )
    yield Row(what="opened, for each", unit="us/msg", ours=column(found[OURS], "open_us"))
    for what, mixed in (("renewed in order", False), ("changed at random", True)):
        found = trial.in_turns(
            f"due times {what}",
            {
                OURS: partial(measured, "changes", CHANGES, each=100, mixed=mixed),
                "memory": partial(measured, "memory_changes", CHANGES, mixed=mixed),
            },
        )
        yield row_of(
            *(found, OURS, "memory", "us"),
            what=f"due time {what}, 100 in a write",
            unit="us",
            beside="index in memory",
            chart=chart,
        )
    found = trial.in_turns(
        "due times changed at random, each a write",
        {
            OURS: partial(measured, "changes", CHANGES, each=1, mixed=True),
            RIP: partial(measured, "rip_changes", CHANGES),
        },
    )
    yield row_of(
        *(found, OURS, RIP, "us"),
        what="due time changed at random, each a write",
        unit="us",
        bar=1.0,
        chart=chart,
        note="ours writes the attempts of the message too",
    )


def memory_rows(trial: Trial) -> Iterator[Row]:
    """Measure memory and disk of pending messages."""
    for what, mixed in (("in order", False), ("mixed, 1 s to 1 h", True)):
        trial.step(f"memory, {what}")
        stored = measured("weight", KEYS, mixed=mixed, stored=True)
        alone = measured("weight", KEYS, mixed=mixed, stored=False)
        yield Row(
            what=f"memory for a key, {KEYS:,} {what}",
            unit="bytes",
            ours=(stored["memory"],),
            other=(alone["memory"],),
            beside="index in memory",
        )
        yield Row(what=f"disk for a key, {KEYS:,} {what}", unit="bytes", ours=(stored["disk"],))


def run(trial: Trial) -> Iterator[Row]:
    """Measure everything. A quick run measures fast and slow acks of our leases."""
    yield from lease_rows(trial)
    if not trial.quick:
        yield from batch_rows(trial)
        yield from due_rows(trial)
        yield from memory_rows(trial)


BENCHMARK: Final = Benchmark(
    name="rocks_state",
    title="Leases and due times in RocksDB",
    about=(
        "The state of a consumer, and RocketMQ's design of RIP-73 on the same RocksDB in Python, "
        "without fsync. Fast acks come 2 s after the delivery (one in a hundred after 30 s), slow "
        "acks after 30 s. The buffer holds new records in memory for 10 s, so that records of "
        "messages acked by then are never written. A changed lease is changed after 1 s and acked "
        "after 2 s. CPU, bytes and writes are those of the whole process."
    ),
    seconds=130,
    quick_s=12,
    run=run,
)


def main() -> None:
    """Run one case, and print JSON."""
    parser = argparse.ArgumentParser(description="One case of the benchmark of state in RocksDB.")
    parser.add_argument("--case", choices=CASES, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--parameters", default="{}", help="of the case, as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        case = CASES[options.case]
        figures = case(Path(folder) / "state", options.count, **json.loads(options.parameters))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
