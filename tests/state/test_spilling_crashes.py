"""Crashes at every write, before, during and after it: each id comes due once, and not early.

Results of calls that returned must hold. The call that the crash interrupted may have happened or
not.
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
    """Make steps small, so that calls come between the steps of work that would take one step."""
    monkeypatch.setattr(heads, "_KEYS_PER_STEP", 2)


class World:
    """An index, and the state that it must still have after a crash.

    Attributes:
        due: Due times by key, including keys that were taken and are not done.
        unsure: Keys of the running call: their due times before and after it; None: not tracked.
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
            discarded = {key: None for key in keys if key[:2] <= (ledger, entry)}
            self._call(dict(discarded), lambda: index.discard_through(ledger, entry))
            self._forget(discarded)
        elif act < 0.80:
            self.now_ms += rng.randrange(60)
            limit = rng.choice([None, 3, 20])
            batch = index.pop_due(self.now_ms, limit)
            for key in batch:
                assert key in self.due and key not in taken, "taken twice, or never added"
                assert self.due[key] <= self.now_ms, "taken early"
            if batch:
                self.taken.append(batch)
        elif self.taken:
            batch = self.taken.pop(rng.randrange(len(self.taken)))
            self._call(dict.fromkeys(batch), lambda: index.done(batch))
        if rng.random() < 0.02:
            index.flush()

    def _forget(self, keys: Collection[MessageKey]) -> None:
        """Drop these keys from taken batches: `done` no longer affects them."""
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
                assert key not in last, "taken twice"
                last[key] = edge
            index.done(batch)
        taken = {key for batch in self.taken for key in batch}
        for key in self.unsure:
            if key in last:
                assert last[key] in (self.unsure[key], self.due.get(key)) or key in taken
                del last[key]
        expected = {key: at for key, at in self.due.items() if key not in self.unsure}
        assert last.keys() == expected.keys()
        for key, edge in last.items():  # a key that was due already may come with an older due time
            assert edge == expected[key] or (key in taken and edge <= self.now_ms), key
        assert len(index) == 0
        index.close()
        assert not drained(SpillingIndex(blobs)), "a done key is due after a restart"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_crash_at_any_write_loses_and_repeats_no_id(seed: int) -> None:
    steps = 260
    whole = FaultyBlobs()
    world = World(whole, seed)
    for _ in range(steps):
        world.step()
    world.check_after_crash(whole.fork())
    assert whole.writes > 200 and len(whole.deleted) > 5, "nothing was sealed, merged or trimmed"
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
def test_a_crash_between_two_calls_loses_and_repeats_no_id(seed: int) -> None:
    """With seed 103, a merge commits while a head with copies of its keys is half sealed."""
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
def test_flushed_changes_survive_a_loss_of_power(seed: int) -> None:
    """This includes the journal of a head that is sealed and not committed yet."""
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
def test_changes_survive_a_loss_of_power_after_the_interval(seed: int) -> None:
    blobs = UnsyncedBlobs()
    index = SpillingIndex(blobs, **{**SMALL, "fsync_interval_s": 0.0})  # type: ignore[arg-type]
    rng = random.Random(seed)
    for entry in range(300):
        index.add((1, entry, -1), rng.randrange(1, 300), 0)
        last = entry - 8  # a sync takes one or two steps, each in a call
        there = drained(SpillingIndex(blobs.without_power()))
        assert {key[1] for key in there} >= set(range(last)), f"seed {seed}, entry {entry}"
