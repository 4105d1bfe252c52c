"""The index on disk: what a kill between any two steps leaves is what was, or is due again."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from rocks_kit import after_kill, killed, opened, source_of

from pulsar_encore.core.due import DueBatch, MessageKey, bucket_edge
from pulsar_encore.errors import StoreError
from pulsar_encore.state.rocks import RocksIndex, RocksStore
from pulsar_encore.state.rocks.database import Database
from pulsar_encore.state.rocks.writes import Writes

KEY = (1, 1, -1)
ALL = 2**62


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def store(path: Path) -> Iterator[RocksStore]:
    store = opened(path)
    yield store
    store.close()


@pytest.fixture
def index(store: RocksStore) -> RocksIndex:
    return source_of(store).index


def left(path: Path) -> list[tuple[int, MessageKey]]:
    """What the next owner finds, with due times."""
    with after_kill(path) as source:
        found: list[tuple[int, MessageKey]] = []
        while (due := source.index.next_due()) is not None:
            found += [(due, key) for key in source.index.pop_due(due)]
        return sorted(found)


def test_what_waits_survives_a_kill_with_its_time(index: RocksIndex, path: Path) -> None:
    keys = [(1, 1, -1), (1, 2, 0), (1, 2, 999), (2**63 - 1, 0, -1)]
    for at, key in enumerate(keys):
        index.add(key, 1000 + at, 6)
    assert left(path) == [(1024, key) for key in sorted(keys)]


def test_a_move_to_the_same_time_keeps_it(index: RocksIndex, path: Path) -> None:
    """RocketMQ #10276: written under the new key and deleted under the old one, which is equal."""
    index.add(KEY, 1000, 6)
    for due_ms in (1000, 1010, 990):  # one bucket
        assert index.move(KEY, due_ms, 6)
        assert left(path) == [(1024, KEY)]
    index.move(KEY, 3000, 0)
    assert left(path) == [(3000, KEY)]


def test_what_was_taken_and_not_done_is_due_again(index: RocksIndex, path: Path) -> None:
    for entry in range(20):
        index.add((1, entry, -1), 100, 0)
    first = index.pop_due(100, 12)
    assert len(index) == 8
    assert len(left(path)) == 20
    index.done(first)
    assert left(path) == [(100, (1, entry, -1)) for entry in range(12, 20)]


def test_what_was_taken_and_put_back_is_there_once(index: RocksIndex, path: Path) -> None:
    for entry in range(20):
        index.add((1, entry, -1), 100, 0)
    for key in index.pop_due(100):
        assert index.add(key, 700, 0)
    assert left(path) == [(700, (1, entry, -1)) for entry in range(20)]


def test_a_batch_that_is_done_leaves_what_was_added_again(index: RocksIndex, path: Path) -> None:
    for entry in range(20):
        index.add((1, entry, -1), 100, 0)
    taken = index.pop_due(100)
    index.add((1, 3, -1), 100, 0)  # at the very time it had
    index.add((1, 4, -1), 500, 0)
    index.done(taken)
    assert left(path) == [(100, (1, 3, -1)), (500, (1, 4, -1))]
    index._check()


@pytest.mark.parametrize("again", ["added", "cleared", "acked"])
def test_a_batch_that_is_done_late_leaves_what_was_taken_again(
    index: RocksIndex, path: Path, again: str
) -> None:
    index.add(KEY, 100, 0)
    first = index.pop_due(100)
    if again == "cleared":
        index.clear()
    elif again == "acked":
        index.discard_entry(*KEY[:2])
    index.add(KEY, 200, 0)
    assert list(index.pop_due(200)) == [KEY]
    index.done(first)
    assert left(path) == [(200, KEY)]


def test_an_ack_of_what_was_taken_counts(index: RocksIndex, store: RocksStore, path: Path) -> None:
    for entry in range(6):
        index.add((1, entry, -1), 100, 0)
    index.pop_due(100)
    assert not index.discard((1, 5, -1))
    assert index.discard_entry(1, 4) == 0
    assert index.discard_through(1, 1) == 0
    store.flush()
    assert left(path) == [(100, (1, 2, -1)), (100, (1, 3, -1))]


def test_a_batch_made_by_hand_can_be_done(index: RocksIndex, path: Path) -> None:
    for entry in range(4):
        index.add((1, entry, -1), 100, 0)
    index.pop_due(100)
    index.done(DueBatch([(1, [0, 2, 9])]))
    assert left(path) == [(100, (1, 1, -1)), (100, (1, 3, -1))]


def test_a_consumer_that_comes_again_has_what_was_taken(store: RocksStore) -> None:
    source = source_of(store)
    source.index.add(KEY, 100, 0)
    source.index.pop_due(100)
    source.close()
    again = source_of(store)
    assert list(again.index.pop_due(100)) == [KEY]


def test_nothing_is_lost_to_a_clock_that_was_set_back(index: RocksIndex, path: Path) -> None:
    index.add((1, 1, -1), 5_000_000, 0)
    index.done(index.pop_due(6_000_000))
    index.add((1, 2, -1), 1000, 0)  # 100 minutes earlier than what has been done
    assert index.next_due() == 1000
    assert left(path) == [(1000, (1, 2, -1))]
    assert list(index.pop_due(1000)) == [(1, 2, -1)]


def test_sources_do_not_touch_each_other(store: RocksStore, path: Path) -> None:
    one, other = source_of(store).index, source_of(store, "persistent://public/default/u").index
    for index in (one, other):
        for entry in range(20):
            index.add((1, entry, -1), 100, 0)
    one.done(one.pop_due(100))
    assert len(other) == 20
    one.add(KEY, 100, 0)
    other.clear()
    other._check()
    assert left(path) == [(100, KEY)]


def test_many_that_are_done_together_are_one_small_write(
    index: RocksIndex, store: RocksStore
) -> None:
    with store.one_batch():
        for entry in range(5000):
            index.add((1, entry, -1), 1000 + entry, 10)
    assert store.statistics().writes <= 3
    before = store.statistics()
    index.done(index.pop_due(10_000))
    after = store.statistics()
    assert after.writes - before.writes == 1
    assert after.operations - before.operations <= 6  # its buckets
    index._check()


@pytest.mark.parametrize("seed", range(12))
def test_a_disk_that_refuses_now_and_then_loses_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Writes fail before they took effect or after it; what failed goes in small pieces."""
    monkeypatch.setattr("pulsar_encore.state.rocks.journal._AGAIN", 7)
    monkeypatch.setattr("pulsar_encore.state.rocks.journal._PROBE", 3)
    store = opened(path)
    index = source_of(store).index
    rng, write = random.Random(seed), Database.write
    failing = 0.0

    def unsure(database: Database, writes: Writes) -> None:
        if rng.random() >= failing:
            write(database, writes)
            if rng.random() >= failing / 2:
                return
        raise StoreError("perhaps it is written")

    waiting: dict[MessageKey, int] = {}
    with monkeypatch.context() as patch:
        patch.setattr(Database, "write", unsure)
        for step in range(400):
            if step % 40 == 0:
                failing = rng.choice([0, 0.5, 0.95])
            key, due_ms = (rng.randrange(2), rng.randrange(40), -1), rng.randrange(20)
            kind = rng.random()
            if kind < 0.8:
                index.move(key, due_ms, 0)
                waiting[key] = due_ms
            elif kind < 0.9:
                index.done(index.pop_due(due_ms // 2))
                waiting = {k: due for k, due in waiting.items() if due > due_ms // 2}
            elif kind < 0.98:
                index.discard_through(*key[:2])
                waiting = {k: due for k, due in waiting.items() if k[:2] > key[:2]}
            else:
                index.clear()
                waiting.clear()
    store.close()
    store = opened(path)
    assert {key: due for due, key in source_of(store).index.waiting()} == waiting
    store.close()


class WithKills(RuleBasedStateMachine):
    """One index, one dict of what waits, one of what is taken; and a kill at any moment."""

    folder: Path

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(dir=self.folder)) / "state"
        self.store = opened(self.path)
        self.index = source_of(self.store).index
        self.waiting: dict[MessageKey, int] = {}
        self.taken: list[tuple[DueBatch, dict[MessageKey, int]]] = []

    keys = st.tuples(st.integers(0, 1), st.integers(0, 12), st.integers(-1, 2))
    dues = st.integers(0, 40)

    @rule(key=keys, due_ms=dues, bits=st.integers(0, 3))
    def add(self, key: MessageKey, due_ms: int, bits: int) -> None:
        if self.index.add(key, due_ms, bits):
            self.waiting[key] = bucket_edge(due_ms, bits)
            self.untake(key)

    @rule(first=st.integers(0, 9), count=st.integers(8, 30), due_ms=dues)
    def add_in_order(self, first: int, count: int, due_ms: int) -> None:
        with self.store.one_batch():
            for entry in range(first, first + count):
                self.add((0, entry, -1), due_ms, 2)

    @rule(key=keys, due_ms=dues, bits=st.integers(0, 3))
    def move(self, key: MessageKey, due_ms: int, bits: int) -> None:
        self.index.move(key, due_ms, bits)
        self.waiting[key] = bucket_edge(due_ms, bits)
        self.untake(key)

    @rule(key=keys)
    def discard(self, key: MessageKey) -> None:
        self.index.discard(key)
        self.waiting.pop(key, None)
        self.untake(key)

    @rule(ledger=st.integers(0, 1), entry=st.integers(0, 12), whole=st.booleans())
    def discard_many(self, ledger: int, entry: int, whole: bool) -> None:
        if whole:
            self.index.discard_through(ledger, entry)
        else:
            self.index.discard_entry(ledger, entry)
        for key in [*self.waiting, *(key for _, keys in self.taken for key in keys)]:
            if key[:2] <= (ledger, entry) if whole else key[:2] == (ledger, entry):
                self.waiting.pop(key, None)
                self.untake(key)

    @rule(now_ms=dues, limit=st.none() | st.integers(0, 20))
    def pop(self, now_ms: int, limit: int | None) -> None:
        batch = self.index.pop_due(now_ms, limit)
        if batch:
            self.taken.append((batch, {key: self.waiting.pop(key) for key in batch}))

    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        if self.taken:
            at = data.draw(st.integers(0, len(self.taken) - 1))
            self.index.done(self.taken.pop(at)[0])

    @rule()
    def clear(self) -> None:
        self.index.clear()
        self.waiting.clear()
        self.taken.clear()

    @rule(flushed=st.booleans())
    def kill(self, flushed: bool) -> None:
        """What is acked may come again, so it is written before."""
        self.store.flush()
        if flushed:
            self.store.close()
        copy = killed(self.path)
        if not flushed:
            self.store.close()
        self.path = copy
        self.store = opened(self.path)
        self.index = source_of(self.store).index
        for _, keys in self.taken:
            self.waiting |= keys
        self.taken.clear()

    @invariant()
    def agree(self) -> None:
        self.index._check()
        assert len(self.index) == len(self.waiting)
        for key, edge in self.waiting.items():
            assert self.index.due_of(key) == edge
        assert self.index.next_due() == min(self.waiting.values(), default=None)

    def untake(self, key: MessageKey) -> None:
        for _, keys in self.taken:
            keys.pop(key, None)

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.path.parent)


def test_agrees_with_a_dict_over_kills(tmp_path: Path) -> None:
    machine = type("Machine", (WithKills,), {"folder": tmp_path})
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=30,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
