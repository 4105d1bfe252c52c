"""State in RocksDB: pending, changed and quickly acked messages, compared with the method of
RIP-73.

Every case has a process and a directory of its own. `docs/notes/delayed-delivery.md` describes
RocketMQ's design. "RIP-73" is RocketMQ's layout and order of work on the same RocksDB with the same
options, in Python, without its broker: keys of 8 bytes of time and the names as text, values of
JSON (about 180 bytes), one write for a new record and one for the removal of the old record, and
removal of due records one by one after scans of 16,384. It keeps nothing in memory, and cannot look
up a key. Its broker fsyncs each write; here neither side does.

- expiry: a million messages, entries of 20 ledgers in order, all due within a minute. Their due
  times pass 500 at a time, as the consumer takes them from its index in memory, and they are acked.
  Opening is the first work of the next process.
- changes: 100,000 pending messages get another due time, five times each. Either one after the
  other, a minute from then (as leases are renewed), or any of them, between 1 s and 1 h, at random.
  100 changes share a write, or each has its own.
- fast ack: 200,000 messages are delivered and acked 2 s later, by the given clock, with the buffer
  of 10 s. One in a hundred is acked after 30 s. They are unbatched in steps of 32, or in batches of
  1000 acked by the entry.
- rates use the CPU time of the calling thread, which never waits here, because on two cores the
  rest of the machine is not quiet enough.
- hold: the longest time that any call of a case kept the thread, for any reason; and the longest
  CPU time of a call, which leaves out other programs on the machine.
- memory: the growth of the resident set, with RocksDB's own memory.

    python -m integration.benchmarks.rocks_state [--scale 1.0]
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from struct import pack
from time import perf_counter, thread_time
from typing import Any

import psutil

from integration.benchmarks.figures import Row, report
from pulsar_encore.core.bucket_width import precision_bits
from pulsar_encore.core.due_index import TimeBucketIndex
from pulsar_encore.core.message_key import MessageKey
from pulsar_encore.state.rocks import AttemptRecords, DeliveredRecord, RocksStore, TopicStore
from pulsar_encore.state.rocks.database import Database
from pulsar_encore.state.rocks.write_batch import DUE, WriteBatch

NOW = 1_800_000_000_000
MILLION = 1_000_000
CHANGES = 100_000
HANDED = 200_000
BURST = 500
SCAN = 16_384
Figures = dict[str, float]


class Stopwatch:
    """Sums up the time of calls, and records the longest."""

    def __init__(self) -> None:
        self.total = self.busy = self.longest = self.busiest = 0.0

    def __call__(self, call: Callable[[], Any]) -> Any:
        busy, start = thread_time(), perf_counter()
        result = call()
        taken = perf_counter() - start
        busy = thread_time() - busy
        self.busy += busy
        self.busiest = max(self.busiest, busy)
        self.total += taken
        self.longest = max(self.longest, taken)
        return result


class Rip73:
    """RocketMQ's records: group, topic and queue in each key, JSON in each value."""

    def __init__(self, path: Path) -> None:
        self.database = Database(path)

    def key(self, due_ms: int, key: MessageKey) -> bytes:
        """Return the due time and the unique part of a key."""
        names = f"billing@orders@{key[0]}@".encode()
        return pack(">Q", due_ms) + names + pack(">q", key[1])

    def value(self, due_ms: int, key: MessageKey) -> bytes:
        """Return the value of a pop consumer record."""
        fields = {
            "popTime": due_ms - 60_000,
            "groupId": "billing",
            "topicId": "orders",
            "queueId": key[0],
            "retryFlag": 0,
            "invisibleTime": 60_000,
            "offset": key[1],
            "attemptTimes": 0,
            "attemptId": "f3b1c8d2-5c0e-4a0f-9f0e-2b1d6d1f7a11",
        }
        return json.dumps(fields, separators=(",", ":")).encode()

    def put(self, keys: list[tuple[int, MessageKey]]) -> None:
        """Put new records in one write."""
        writes = WriteBatch()
        for due_ms, key in keys:
            writes.put(DUE, self.key(due_ms, key), self.value(due_ms, key))
        self.database.write(writes)

    def remove(self, keys: list[bytes]) -> None:
        """Remove records in one write."""
        writes = WriteBatch()
        for key in keys:
            writes.delete(DUE, key)
        self.database.write(writes)

    def revive(self, now_ms: int) -> int:
        """Remove due records, one scan and one write at a time. Return their number."""
        cursor, count = b"", 0
        while True:
            found = []
            rows = self.database.scan(DUE, cursor, pack(">Q", now_ms))
            for key, value in rows:
                json.loads(value)
                found.append(key)
                if len(found) == SCAN:
                    break
            rows.close()  # type: ignore[attr-defined]
            if not found:
                return count
            self.remove(found)
            cursor = found[-1]
            count += len(found)


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


def expiry(path: Path, scale: float) -> Figures:
    """Measure a million messages that are due within a minute."""
    count = int(MILLION * scale)
    store, topic_store = opened(path)
    fill(store, topic_store, count, 60_000, mixed=False)
    store.close()
    start = perf_counter()
    store, topic_store = opened(path)
    opening = perf_counter() - start
    watch = Stopwatch()
    records = topic_store.records
    keys = [key for key, *_ in waits(count, 60_000, mixed=False)]

    def settled(some: list[MessageKey]) -> None:
        records.record_due(some)
        for ledger, entry, _ in some:
            records.record_ack(ledger, entry)

    for at in range(0, count, BURST):
        watch(lambda at=at: settled(keys[at : at + BURST]))
    store.flush()
    assert len(records) == records.waiting == 0
    start = perf_counter()
    store.close()
    closing = perf_counter() - start
    return {
        "seconds": watch.busy,
        "wall": watch.total,
        "hold_ms": watch.longest * 1e3,
        "busy_ms": watch.busiest * 1e3,
        "opening": opening,
        "closing": closing,
    }


def rip_expiry(path: Path, scale: float) -> Figures:
    """Measure the same with RocketMQ's method."""
    count = int(MILLION * scale)
    rip = Rip73(path)
    for at in range(0, count, 100):
        rip.put(
            [(NOW + 60_000 * n // count, key_of(n, count)) for n in range(at, min(at + 100, count))]
        )
    watch = Stopwatch()
    assert watch(lambda: rip.revive(NOW + 120_000)) == count
    return {"seconds": watch.busy}


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


def changes(path: Path, scale: float, each: int, mixed: bool) -> Figures:
    """Measure changes of due times, `each` in one write."""
    count = int(CHANGES * scale)
    store, topic_store = opened(path)
    fill(store, topic_store, count, 3_600_000, mixed)
    moves = moves_of(count, mixed)
    watch, nack = Stopwatch(), topic_store.records.record_nack

    def some(at: int) -> None:
        with store.batched_writes():
            for key, due_ms, bits in moves[at : at + each]:
                nack(key, due_ms, 1, NOW, bits=bits)

    for at in range(0, len(moves), each):
        watch(lambda at=at: some(at))
    store.close()
    return {
        "per_s": len(moves) / watch.busy,
        "wall_per_s": len(moves) / watch.total,
        "hold_ms": watch.longest * 1e3,
        "busy_ms": watch.busiest * 1e3,
    }


def rip_changes(path: Path, scale: float) -> Figures:
    """Measure a new record, then the removal of the old one, a write each, like
    changeInvisibleTime.
    """
    count = int(CHANGES * scale)
    rip = Rip73(path)
    moves = moves_of(count, mixed=True)
    due = {key_of(n, count): NOW + 1000 * n for n in range(count)}
    rows = [(due_ms, key) for key, due_ms in due.items()]
    for at in range(0, count, 100):
        rip.put(rows[at : at + 100])
    start = thread_time()
    for key, new, _ in moves[:count]:
        rip.put([(new, key)])
        if due[key] != new:
            rip.remove([rip.key(due[key], key)])
        due[key] = new
    return {"per_s": count / (thread_time() - start)}


def memory_changes(path: Path, scale: float, mixed: bool) -> Figures:
    """Measure the same changes in memory only."""
    count = int(CHANGES * scale)
    index = TimeBucketIndex()
    for row in waits(count, 3_600_000, mixed):
        index.add(*row)
    moves = moves_of(count, mixed)
    start = thread_time()
    for key, due_ms, bits in moves:
        index.move(key, due_ms, bits)
    return {"per_s": len(moves) / (thread_time() - start)}


def acks(path: Path, scale: float, count_attempts: str, size: int) -> Figures:
    """Measure deliveries acked 2 s later, with one in a hundred after 30 s."""
    count = int(HANDED * scale)
    store, topic_store = opened(path, count_attempts=count_attempts)
    records: AttemptRecords = topic_store.records
    first = store.statistics()
    watch = Stopwatch()
    turn, mask = (32, 1) if size == 1 else (1, (1 << size) - 1)
    settle: dict[int, list[int]] = {}
    entries = count // size

    def tick(at: int, ends: bool) -> None:
        for entry in range(at, min(at + turn, entries) if not ends else at):
            slow = entry % 100 == 99
            settle.setdefault(now + (30_000 if slow else 2_000), []).append(entry)
        if not ends:
            handed = [DeliveredRecord(1, e, size, mask) for e in range(at, min(at + turn, entries))]
            watch(lambda: records.record_deliveries(handed, now))
        for entry in settle.pop(now, ()):
            watch(lambda entry=entry: records.record_ack(1, entry))
        watch(lambda: records.flush(now))

    now = NOW
    for at in range(0, entries, turn):
        tick(at, ends=False)
        now += 10
    while settle:
        now = min(settle)
        tick(entries, ends=True)
    store.flush()
    assert len(records) == 0
    last = store.statistics()
    figures = {
        "writes": last.writes - first.writes,
        "operations": last.operations - first.operations,
        "share": 100 * (1 - (last.operations - first.operations) / 2 / entries),
        "us": watch.busy / count * 1e6,
    }
    store.close()
    return figures


def questions(path: Path, scale: float) -> Figures:
    """Measure lookups of new and of known messages, with 100,000 records."""
    count = int(CHANGES * scale)
    store, topic_store = opened(path)
    for at in range(0, 2 * count, 200):
        topic_store.records.record_deliveries(
            [DeliveredRecord(1, entry) for entry in range(at, at + 200, 2)], NOW
        )
    figures = {}
    for name, first in (("new_ns", 1), ("known_ns", 0)):
        start = thread_time()
        for entry in range(first, 2 * count, 2):
            topic_store.records.recall_entry(1, entry)
        figures[name] = (thread_time() - start) / count * 1e9
    store.close()
    return figures


def weight(path: Path, scale: float, mixed: bool, stored: bool) -> Figures:
    """Return the bytes of each pending key: in memory, and on disk after a close."""
    count = int(MILLION * scale)
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


CASES: dict[str, Callable[[Path, float], Figures]] = {
    "expiry": expiry,
    "rip expiry": rip_expiry,
    "renewals": lambda path, scale: changes(path, scale, 100, False),
    "memory renewals": lambda path, scale: memory_changes(path, scale, False),
    "changes": lambda path, scale: changes(path, scale, 100, True),
    "memory changes": lambda path, scale: memory_changes(path, scale, True),
    "changes alone": lambda path, scale: changes(path, scale, 1, True),
    "rip changes": rip_changes,
    "lazy": lambda path, scale: acks(path, scale, "lazy", 1),
    "before": lambda path, scale: acks(path, scale, "before", 1),
    "before, batches": lambda path, scale: acks(path, scale, "before", 1000),
    "questions": questions,
    "in order": lambda path, scale: weight(path, scale, False, True),
    "in order alone": lambda path, scale: weight(path, scale, False, False),
    "mixed": lambda path, scale: weight(path, scale, True, True),
    "mixed alone": lambda path, scale: weight(path, scale, True, False),
}


def measure(case: str, scale: float) -> Figures:
    """Run one case in a process of its own."""
    answer = subprocess.run(
        [sys.executable, "-m", __spec__.name, "--case", case, "--scale", str(scale)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    figures: Figures = json.loads(answer.stdout)
    return figures


def run(scale: float = 1.0) -> list[Row]:
    """Measure everything. The bars are meant for `scale` 1."""
    f = {case: measure(case, scale) for case in CASES}
    rip, memory = "RIP-73", "in memory"
    more = {"higher_is_better": True}
    alone = f["changes alone"]

    def changed(case: str, what: str) -> list[Row]:
        ours, plain = f[case], f[f"memory {case}"]["per_s"]
        return [
            Row(
                what=f"due times {what}",
                unit="1/s",
                figure=ours["per_s"],
                other=plain,
                beside=memory,
                bar=100_000,
                **more,
            ),
            Row(what="... by the clock", unit="1/s", figure=ours["wall_per_s"]),
            Row(what="... longest hold", unit="ms", figure=ours["hold_ms"]),
            Row(what="... of it at work", unit="ms", figure=ours["busy_ms"]),
        ]

    rows = [
        Row(
            what="a million due in a minute: taken and done",
            unit="s",
            figure=f["expiry"]["seconds"],
            other=f["rip expiry"]["seconds"],
            beside=rip,
            bar=5.0,
        ),
        Row(what="... by the clock", unit="s", figure=f["expiry"]["wall"]),
        Row(what="... longest hold", unit="ms", figure=f["expiry"]["hold_ms"]),
        Row(what="... of it at work", unit="ms", figure=f["expiry"]["busy_ms"]),
        Row(what="... opening it before", unit="s", figure=f["expiry"]["opening"]),
        Row(what="... closing it", unit="s", figure=f["expiry"]["closing"]),
        *changed("renewals", "renewed in order, 100 a write"),
        *changed("changes", "changed at random, 100 a write"),
        Row(
            what="due times changed at random, each a write",
            unit="1/s",
            figure=alone["per_s"],
            other=f["rip changes"]["per_s"],
            beside=rip,
        ),
        Row(what="... longest hold", unit="ms", figure=alone["hold_ms"]),
        Row(what="... of it at work", unit="ms", figure=alone["busy_ms"]),
        Row(
            what="fast ack, lazy: messages never written",
            unit="%",
            figure=f["lazy"]["share"],
            bar=99.0,
            **more,
        ),
        Row(what="... a message", unit="us", figure=f["lazy"]["us"]),
        Row(what="fast ack, before: a message", unit="us", figure=f["before"]["us"]),
        Row(what="... writes", unit="", figure=f["before"]["writes"]),
        Row(what="... batches of 1000: a message", unit="us", figure=f["before, batches"]["us"]),
        Row(what="... puts and deletes", unit="", figure=f["before, batches"]["operations"]),
        Row(what="recall of what is new", unit="ns", figure=f["questions"]["new_ns"]),
        Row(what="recall of what is known", unit="ns", figure=f["questions"]["known_ns"]),
    ]
    for case, what in (("in order", "in order"), ("mixed", "mixed, 1 s to 1 h")):
        rows += [
            Row(
                what=f"memory for a key, a million {what}",
                unit="bytes",
                figure=f[case]["memory"],
                other=f[f"{case} alone"]["memory"],
                beside=memory,
            ),
            Row(what="... on disk", unit="bytes", figure=f[case]["disk"]),
        ]
    return rows


def main() -> int:
    """Print the table. Return 1 if a bar was missed, else 0."""
    parser = argparse.ArgumentParser(description="State in RocksDB.")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--case", choices=CASES)
    options = parser.parse_args()
    if options.case is None:
        return report(run(options.scale))
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(CASES[options.case](Path(folder) / "state", options.scale)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
