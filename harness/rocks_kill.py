"""State in RocksDB under load, killed at random moments: nothing lost, no count too low.

A child hands over messages (alone, and in batches of 50), acks and nacks them, takes what is due,
and says on a pipe what it did: of a hand-over and of a nack once the call has returned, of an ack
and of what is done with before it is called. It is killed with SIGKILL; then the directory is
opened and held against what was said, and the next child goes on with it.

    python -m harness.rocks_kill [--kills 50] [--seed 1]
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

BATCH = 50
START_S = 60


@dataclass
class Known:
    """What children said.

    Attributes:
        attempts: By message: the highest hand-over that was told, of what is not perhaps acked.
        waiting: By message: until when, of what surely waits.
        found: Hand-overs and nacks that the directory was held against, over all kills.
    """

    attempts: dict[MessageKey, int] = field(default_factory=dict)
    waiting: dict[MessageKey, int] = field(default_factory=dict)
    found: int = 0

    def hear(self, line: str) -> None:
        """One thing a child said."""
        what, *numbers = line.split()
        ledger, entry, index, value = map(int, numbers)
        key = (ledger, entry, index)
        if what == "handed":
            self.attempts[key] = max(self.attempts.get(key, 0), value)
        elif what == "waits":
            self.waiting[key] = value
        elif what in ("acks", "nacks", "done"):  # from now on, perhaps
            self.waiting.pop(key, None)
            if what == "acks":
                self.attempts.pop(key, None)

    def check(self, source: TopicStore) -> list[str]:
        """What the directory does not know any more."""
        wrong = []
        for (ledger, entry, index), attempts in self.attempts.items():
            found = source.records.recall(ledger, entry, index)
            if found is None or found.attempts < attempts:
                wrong.append(f"{ledger}:{entry}:{index} was handed over {attempts} times: {found}")
        for key, due_ms in self.waiting.items():
            found = source.records.recall(*key)
            if found is None or found.due_ms != due_ms:
                wrong.append(f"{key} waits until {due_ms}: {found}")
        self.found += len(self.attempts) + len(self.waiting)
        return wrong


def source_of(store: RocksStore) -> TopicStore:
    """The one source of all children."""
    return store.source("persistent://public/default/kills", "s")


class Child:
    """Works until it is killed.

    Args:
        path: Of the state.
        life: How many children were before.
        seed: Of what it does.
    """

    def __init__(self, path: Path, life: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 1_800_000_000_000 + life * 1_000
        self.source = source_of(RocksStore(path, wall_now_ms=self.now))
        self.ledger, self.entry = life, 0
        self.due = TimeBucketIndex()  # as the consumer has it
        for (ledger, entry), record in self.source.records.entries_waiting():
            for index, due_ms in record.dues_by_index().items():
                self.due.add((ledger, entry, index), due_ms, 0)
        self.held: dict[MessageKey, int] = {}
        self.size: dict[tuple[int, int], int] = {}

    def run(self) -> None:
        """One thing after the other, for ever."""
        steps = (self.hand_over, self.ack, self.nack, self.take, self.flush)
        for step in iter(lambda: self.rng.choices(steps, (5, 4, 4, 3, 1))[0], None):
            step()
            self.now += self.rng.randrange(50)

    def hand_over(self) -> None:
        """New messages: up to 32 alone, or a batch."""
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
        self.source.records.started(handed, self.now)
        self.held |= dict.fromkeys(keys, 1)
        tell("handed", ((key, 1) for key in keys))

    def some(self) -> list[MessageKey]:
        """Of what is held."""
        keys = list(self.held)
        return self.rng.sample(keys, min(len(keys), self.rng.randrange(1, 20)))

    def ack(self) -> None:
        """Some of what is held."""
        keys = self.some()
        tell("acks", ((key, 0) for key in keys))
        for ledger, entry, index in keys:
            del self.held[ledger, entry, index]
            self.source.records.settled(ledger, entry, 1 << index if index >= 0 else None)

    def nack(self) -> None:
        """Some of what is held."""
        keys = self.some()
        tell("nacks", ((key, 0) for key in keys))
        waits = []
        for key in keys:
            due_ms = self.now + self.rng.randrange(1, 2_000)
            attempts = self.held.pop(key)
            size = BATCH if key[2] >= 0 else 1
            self.source.records.waits(key, due_ms, attempts, self.now, size=size)
            self.due.move(key, due_ms, 0)
            waits.append((key, due_ms))
        tell("waits", waits)

    def take(self) -> None:
        """What is due is handed over again."""
        keys = list(self.due.pop_due(self.now, 50))
        tell("done", ((key, 0) for key in keys))
        self.source.records.passed(keys)
        again = []
        for key in keys:
            found = self.source.records.recall(*key)
            attempt = 1 + (0 if found is None else found.attempts)
            size, mask = (BATCH, 1 << key[2]) if key[2] >= 0 else (1, 1)
            self.source.records.started(
                [DeliveredRecord(key[0], key[1], size, mask, attempt)], self.now
            )
            self.held[key] = attempt
            again.append((key, attempt))
        tell("handed", again)

    def flush(self) -> None:
        """What is old in memory."""
        self.source.records.flush(self.now)


def tell(what: str, values: Iterable[tuple[MessageKey, int]]) -> None:
    """Say it, whole, before anything else is done."""
    text = "".join(f"{what} {key[0]} {key[1]} {key[2]} {value}\n" for key, value in values)
    data = text.encode()
    while data:
        data = data[os.write(1, data) :]


def kill_again_and_again(folder: Path, kills: int, seed: int) -> tuple[Known, list[str]]:
    """Run children and kill them; returns what they said and what of it was not found."""
    known, wrong = Known(), []
    rng = random.Random(seed)
    for life in range(kills):
        command = [sys.executable, "-m", "harness.rocks_kill", "--child"]
        with subprocess.Popen(
            [*command, str(folder), str(life), str(rng.randrange(2**31))], stdout=subprocess.PIPE
        ) as child:
            assert child.stdout is not None
            overdue = threading.Timer(START_S, child.kill)
            overdue.start()
            first = child.stdout.readline()
            overdue.cancel()
            ends = threading.Timer(rng.uniform(0, 0.3), child.kill)
            ends.start()
            said = [first, *child.stdout]
            ends.join()
        if not first or child.returncode != -9:
            wrong.append(f"child {life} ended by itself: {child.returncode}")
        for line in said:
            if line.endswith(b"\n"):  # what was cut off had not been done, or was not told
                known.hear(line.decode())
        store = RocksStore(folder, wall_now_ms=0)
        wrong += [f"after kill {life}: {each}" for each in known.check(source_of(store))]
        store.close()
    return known, wrong


def main() -> int:
    """Print what was found; 1 when anything was not."""
    parser = argparse.ArgumentParser(description="Kill a process that has state in RocksDB.")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--child", nargs=3, metavar=("PATH", "LIFE", "SEED"))
    options = parser.parse_args()
    if options.child:
        path, life, seed = options.child
        Child(Path(path), int(life), int(seed)).run()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        known, wrong = kill_again_and_again(Path(folder) / "state", options.kills, options.seed)
    print(
        f"seed {options.seed}: {options.kills} kills in {time.perf_counter() - start:.0f} s, "
        f"{known.found} times looked for what was told, {len(wrong)} times not found"
    )
    print("\n".join(wrong[:20]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
