"""A crash at every single write, before it, half way and after it: each id comes once, no sooner.

What a call that returned has said holds; the call that the crash cut short may hold or not.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection

import pytest
from spilling_kit import Crash, FaultyBlobs, UnsyncedBlobs, drained

from pulsar_encore.core.due_index import DueBatch, MessageKey
from pulsar_encore.state import MemoryBlobs, SpillingIndex
from pulsar_encore.state.spilling import heads

SEEDS = [1, 2, 3]
SMALL = {
    "min_index_count_per_bucket": 5,
    "max_indexes_per_bucket_snapshot_segment": 3,
    "max_num_buckets": 2,
    "max_journal_bytes": 1500,
    "retry_s": 0.0,
}


@pytest.fixture(autouse=True)
def many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that calls come between the steps of what is done at once where it is small."""
    monkeypatch.setattr(heads, "_KEYS_PER_STEP", 2)


class World:
    """An index, and what it must still know whatever happens.

    Attributes:
        due: By key: when it is due; also of what was taken and is not done.
        unsure: Keys of the call under way: what it was before, what it would be; None: not there.
        done: Keys that were done.
    """

    def __init__(self, blobs: MemoryBlobs, seed: int) -> None:
        self.rng = random.Random(seed)
        self.due: dict[MessageKey, int] = {}
        self.unsure: dict[MessageKey, int | None] = {}
        self.taken: list[DueBatch] = []
        self.now_ms = 0
        self.fresh = 0
        self.index = SpillingIndex(blobs, **SMALL)  # type: ignore[arg-type]

    def step(self) -> None:
        rng, index = self.rng, self.index
        act = rng.random()
        keys = sorted(self.due)
        taken = {key for batch in self.taken for key in batch}
        if act < 0.45 or not keys:
            key = self._key()
            if key not in self.due:
                due_ms = self.now_ms + rng.randrange(1, 300)
                self._call({key: due_ms}, lambda: index.add(key, due_ms, 0))
        elif act < 0.55:
            key, due_ms = rng.choice(keys), self.now_ms + rng.randrange(1, 300)
            self._call({key: due_ms}, lambda: index.move(key, due_ms, 0))
            self._forget({key})
        elif act < 0.65:
            key = rng.choice(keys)
            self._call({key: None}, lambda: index.discard(key))
            self._forget({key})
        elif act < 0.68:
            ledger, entry = rng.randrange(3), rng.randrange(20)
            gone = {key: None for key in keys if key[:2] <= (ledger, entry)}
            self._call(dict(gone), lambda: index.discard_through(ledger, entry))
            self._forget(gone)
        elif act < 0.80:
            self.now_ms += rng.randrange(60)
            limit = rng.choice([None, 3, 20])
            batch = index.pop_due(self.now_ms, limit)
            for key in batch:
                assert key in self.due and key not in taken, "twice, or never added"
                assert self.due[key] <= self.now_ms, "early"
            if batch:
                self.taken.append(batch)
        elif self.taken:
            batch = self.taken.pop(rng.randrange(len(self.taken)))
            self._call(dict.fromkeys(batch), lambda: index.done(batch))
        if rng.random() < 0.02:
            index.flush()

    def _forget(self, keys: Collection[MessageKey]) -> None:
        """What was taken of these is nothing that `done` says anything of."""
        rest = sorted({key for batch in self.taken for key in batch}.difference(keys))
        self.taken = [
            DueBatch(
                [(ledger, [entry])] if at < 0 else [], [(ledger, entry, 1 << at)] if at >= 0 else []
            )
            for ledger, entry, at in rest
        ]

    def _key(self) -> MessageKey:
        rng = self.rng
        if rng.random() < 0.8:
            self.fresh += 1
            return self.fresh % 3, self.fresh // 3, rng.choice([-1, -1, 0, 70])
        return rng.randrange(3), rng.randrange(20), -1

    def _call(self, changes: dict[MessageKey, int | None], do: Callable[[], object]) -> None:
        self.unsure = changes
        do()
        for key, due_ms in changes.items():
            if due_ms is None:
                self.due.pop(key, None)
            else:
                self.due[key] = due_ms
        self.unsure = {}

    def check_after_crash(self, blobs: MemoryBlobs) -> None:
        index = SpillingIndex(blobs, **SMALL)  # type: ignore[arg-type]
        index._check()
        last: dict[MessageKey, int] = {}
        while (edge := index.next_due()) is not None:
            batch = index.pop_due(edge)
            assert batch
            for key in batch:
                assert key not in last, "twice"
                last[key] = edge
            index.done(batch)
        taken = {key for batch in self.taken for key in batch}
        for key in self.unsure:
            if key in last:
                assert last[key] in (self.unsure[key], self.due.get(key)) or key in taken
                del last[key]
        expected = {key: at for key, at in self.due.items() if key not in self.unsure}
        assert last.keys() == expected.keys()
        for key, edge in last.items():  # what came due already may come at an older time
            assert edge == expected[key] or (key in taken and edge <= self.now_ms), key
        assert len(index) == 0
        index.close()
        assert not drained(SpillingIndex(blobs)), "done, and again after a restart"


@pytest.mark.parametrize("seed", SEEDS)
def test_no_id_is_lost_or_comes_twice_whatever_write_the_crash_is_at(seed: int) -> None:
    steps = 260
    whole = FaultyBlobs()
    world = World(whole, seed)
    for _ in range(steps):
        world.step()
    world.check_after_crash(whole.fork())
    assert whole.writes > 200 and len(whole.deleted) > 5, "sealed, merged and trimmed"
    for at in range(whole.writes):
        share = (0.0, 0.5, 1.0)[(at + seed) % 3]
        blobs = FaultyBlobs(lambda number, at=at, share=share: share if number == at else None)  # type: ignore[misc]
        try:
            world = World(blobs, seed)
        except Crash:
            assert not drained(SpillingIndex(blobs.fork()))
            continue
        with pytest.raises(Crash):
            for _ in range(steps):
                world.step()
        try:
            world.check_after_crash(blobs.fork())
        except AssertionError as error:
            error.add_note(f"seed {seed}, crash at write {at}, of which {share} took place")
            raise


@pytest.mark.parametrize("seed", [103, *range(10, 15)])
def test_no_id_is_lost_or_comes_twice_between_two_calls(seed: int) -> None:
    """103 had a merge commit while a head with copies of what it merged was half sealed."""
    blobs = FaultyBlobs()
    world = World(blobs, seed)
    for step in range(260):
        world.step()
        if not (step + seed) % 7 or seed == 103:
            try:
                world.check_after_crash(blobs.fork())
            except AssertionError as error:
                error.add_note(f"seed {seed}, after step {step}")
                raise


@pytest.mark.parametrize("seed", range(20, 26))
def test_what_was_flushed_survives_a_loss_of_power(seed: int) -> None:
    """Also what is in a journal that a head, sealed and not committed yet, has left."""
    blobs = UnsyncedBlobs()
    world = World(blobs, seed)
    for step in range(400):
        world.step()
        if (step + seed) % 5 == 0:
            world.index.flush()
            try:
                world.check_after_crash(blobs.without_power())
            except AssertionError as error:
                error.add_note(f"seed {seed}, after step {step}")
                raise


@pytest.mark.parametrize("seed", range(30, 33))
def test_after_the_interval_it_survives_a_loss_of_power_without_a_flush(seed: int) -> None:
    blobs = UnsyncedBlobs()
    index = SpillingIndex(blobs, **{**SMALL, "fsync_interval_s": 0.0})  # type: ignore[arg-type]
    rng = random.Random(seed)
    for entry in range(300):
        index.add((1, entry, -1), rng.randrange(1, 300), 0)
        last = entry - 8  # of the calls: a sync takes a step or two of one
        there = drained(SpillingIndex(blobs.without_power()))
        assert {key[1] for key in there} >= set(range(last)), f"seed {seed}, entry {entry}"
