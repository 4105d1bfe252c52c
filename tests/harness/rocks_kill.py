"""Kill a process with state in RocksDB at random moments: no record is lost or counted too low.

A child delivers messages (unbatched, and in batches of 50), acks and nacks them, takes due ones,
and reports each step on a pipe. Deliveries and nacks are reported after the call has returned, acks
and finished messages before the call. The child is killed with SIGKILL. The directory is then
opened and compared with the reports, and the next child continues with it.

    python -m tests.harness.rocks_kill [--kills 50] [--seed 1]
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from pulsar_encore.core.due_index import TimeBucketIndex
from pulsar_encore.core.message_key import MessageKey
from pulsar_encore.state.rocks import DeliveredRecord, RocksStore, TopicStore

from .recalled_attempts import recall

BATCH = 50
START_S = 60


@dataclass
class Observed:
    """The reports of all children.

    Attributes:
        attempts: The highest reported attempt of each message that is certainly not acked.
        waiting: The due time of each message that certainly waits.
        found: Deliveries and nacks that were compared, over all kills.
    """

    attempts: dict[MessageKey, int] = field(default_factory=dict)
    waiting: dict[MessageKey, int] = field(default_factory=dict)
    found: int = 0

    def record(self, line: str) -> None:
        """Record one line of a child."""
        what, *numbers = line.split()
        ledger, entry, index, value = map(int, numbers)
        key = (ledger, entry, index)
        if what == "handed":
            self.attempts[key] = max(self.attempts.get(key, 0), value)
        elif what == "waits":
            self.waiting[key] = value
        elif what in ("acks", "nacks", "done"):  # it may have happened from now on
            self.waiting.pop(key, None)
            if what == "acks":
                self.attempts.pop(key, None)

    def check(self, topic_store: TopicStore) -> list[str]:
        """Return the reports that are missing from the directory."""
        missing = []
        for (ledger, entry, index), attempts in self.attempts.items():
            found = recall(topic_store.records, ledger, entry, index)
            if found is None or found.attempts < attempts:
                missing.append(f"{ledger}:{entry}:{index} was delivered {attempts} times: {found}")
        for key, due_ms in self.waiting.items():
            found = recall(topic_store.records, *key)
            if found is None or found.due_ms != due_ms:
                missing.append(f"{key} waits until {due_ms}: {found}")
        self.found += len(self.attempts) + len(self.waiting)
        return missing


def topic_of(store: RocksStore) -> TopicStore:
    """Return the topic store that all children use."""
    return store.topic_store("persistent://public/default/kills", "s")


class Child:
    """Works until it is killed.

    Args:
        path: Directory of the state.
        run_number: Number of children before this one.
        seed: Seed of its decisions.
    """

    def __init__(self, path: Path, run_number: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 1_800_000_000_000 + run_number * 1_000
        self.topic_store = topic_of(RocksStore(path, wall_now_ms=self.now))
        self.ledger, self.entry = run_number, 0
        self.due = TimeBucketIndex()  # as in the consumer
        for (ledger, entry), record in self.topic_store.records.entries_waiting():
            for index, due_ms in record.dues_by_index().items():
                self.due.add((ledger, entry, index), due_ms, 0)
        self.held: dict[MessageKey, int] = {}
        self.size: dict[tuple[int, int], int] = {}

    def run(self) -> None:
        """Run one random step after another, for ever."""
        steps = (self.hand_over, self.ack, self.nack, self.take_due, self.flush)
        for step in iter(lambda: self.rng.choices(steps, (5, 4, 4, 3, 1))[0], None):
            step()
            self.now += self.rng.randrange(50)

    def hand_over(self) -> None:
        """Deliver new messages: up to 32 unbatched ones, or a batch."""
        self.entry += 1
        if self.rng.random() < 0.3:
            key = (self.ledger, self.entry)
            self.size[key] = BATCH
            handed = [DeliveredRecord(*key, BATCH, (1 << BATCH) - 1, 1)]
            keys = [(*key, index) for index in range(BATCH)]
        else:
            count = self.rng.randrange(1, 33)
            keys = [(self.ledger, self.entry + i, -1) for i in range(count)]
            handed = [DeliveredRecord(ledger, entry) for ledger, entry, _ in keys]
            self.entry += count
        self.topic_store.records.record_deliveries(handed, self.now)
        self.held |= dict.fromkeys(keys, 1)
        report("handed", ((key, 1) for key in keys))

    def sample_held(self) -> list[MessageKey]:
        """Return some of the held messages."""
        keys = list(self.held)
        return self.rng.sample(keys, min(len(keys), self.rng.randrange(1, 20)))

    def ack(self) -> None:
        """Ack some of the held messages."""
        keys = self.sample_held()
        report("acks", ((key, 0) for key in keys))
        for ledger, entry, index in keys:
            del self.held[ledger, entry, index]
            self.topic_store.records.record_ack(ledger, entry, 1 << index if index >= 0 else None)

    def nack(self) -> None:
        """Nack some of the held messages."""
        keys = self.sample_held()
        report("nacks", ((key, 0) for key in keys))
        waits = []
        for key in keys:
            due_ms = self.now + self.rng.randrange(1, 2_000)
            attempts = self.held.pop(key)
            size = BATCH if key[2] >= 0 else 1
            self.topic_store.records.record_nack(key, due_ms, attempts, self.now, size=size)
            self.due.move(key, due_ms, 0)
            waits.append((key, due_ms))
        report("waits", waits)

    def take_due(self) -> None:
        """Deliver due messages again."""
        keys = list(self.due.pop_due(self.now, 50))
        report("done", ((key, 0) for key in keys))
        self.topic_store.records.record_due(keys)
        taken = []
        for key in keys:
            found = recall(self.topic_store.records, *key)
            attempt = 1 + (0 if found is None else found.attempts)
            size, mask = (BATCH, 1 << key[2]) if key[2] >= 0 else (1, 1)
            self.topic_store.records.record_deliveries(
                [DeliveredRecord(key[0], key[1], size, mask, attempt)], self.now
            )
            self.held[key] = attempt
            taken.append((key, attempt))
        report("handed", taken)

    def flush(self) -> None:
        """Write old records that are only in memory."""
        self.topic_store.records.flush(self.now)


def report(what: str, values: Iterable[tuple[MessageKey, int]]) -> None:
    """Write all lines before returning."""
    text = "".join(f"{what} {key[0]} {key[1]} {key[2]} {value}\n" for key, value in values)
    data = text.encode()
    while data:
        data = data[os.write(1, data) :]


def kill_again_and_again(folder: Path, kills: int, seed: int) -> tuple[Observed, list[str]]:
    """Run children and kill them. Return their reports and the missing ones."""
    observed, missing = Observed(), []
    rng = random.Random(seed)
    for run_number in range(kills):
        command = [sys.executable, "-m", "tests.harness.rocks_kill", "--child"]
        with subprocess.Popen(
            [*command, str(folder), str(run_number), str(rng.randrange(2**31))],
            stdout=subprocess.PIPE,
        ) as child:
            assert child.stdout is not None
            start_timer = threading.Timer(START_S, child.kill)
            start_timer.start()
            first = child.stdout.readline()
            start_timer.cancel()
            kill_timer = threading.Timer(rng.uniform(0, 0.3), child.kill)
            kill_timer.start()
            lines = [first, *child.stdout]
            kill_timer.join()
        if not first or child.returncode != -9:
            missing.append(f"child {run_number} ended before the kill: {child.returncode}")
        for line in lines:
            if line.endswith(b"\n"):  # an incomplete line is not a report
                observed.record(line.decode())
        store = RocksStore(folder, wall_now_ms=0)
        missing += [f"after kill {run_number}: {each}" for each in observed.check(topic_of(store))]
        store.close()
    return observed, missing


def main() -> int:
    """Print the result. Return 1 if a report was missing, else 0."""
    parser = argparse.ArgumentParser(description="Kill a process that has state in RocksDB.")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--child", nargs=3, metavar=("PATH", "LIFE", "SEED"))
    options = parser.parse_args()
    if options.child:
        path, run_number, seed = options.child
        Child(Path(path), int(run_number), int(seed)).run()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        observed, missing = kill_again_and_again(
            Path(folder) / "state", options.kills, options.seed
        )
    print(
        f"seed {options.seed}: {options.kills} kills in {time.perf_counter() - start:.0f} s, "
        f"{observed.found} reports compared, {len(missing)} not found"
    )
    print("\n".join(missing[:20]))
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
