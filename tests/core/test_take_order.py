"""A take that ends within a bucket hands out its lowest keys, in every engine."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from pulsar_encore.core.due_index import DueIndex, MessageKey, TimeBucketIndex
from pulsar_encore.core.key_order import groups
from pulsar_encore.state import MemoryBlobs, SpillingIndex


def spilling(**options: int) -> Callable[[], DueIndex]:
    return lambda: SpillingIndex(
        MemoryBlobs(),
        journal=False,
        **options,  # type: ignore[arg-type]
    )


ENGINES: dict[str, Callable[[], DueIndex]] = {
    "time buckets": TimeBucketIndex,
    "time buckets, small blocks": lambda: TimeBucketIndex(block_bits=2, page_bits=1),
    "time buckets, sealed at once": lambda: TimeBucketIndex(
        open_buckets=0, block_bits=1, page_bits=1
    ),
    "spilling": spilling(),
    "spilling, sealed at once": spilling(min_index_count_per_bucket=1),
    "spilling, short segments": spilling(
        min_index_count_per_bucket=9, max_indexes_per_bucket_snapshot_segment=2
    ),
    "spilling, transient": spilling(
        min_index_count_per_bucket=6,
        max_indexes_per_bucket_snapshot_segment=4,
        max_num_buckets=2,
        transient=True,
    ),
    "spilling, merged at once": spilling(
        min_index_count_per_bucket=5, max_indexes_per_bucket_snapshot_segment=3, max_num_buckets=1
    ),
}

# On both sides of the edges of blocks (8192 entries, or 128 entries of a page) and pages (64).
ledgers = st.integers(0, 3)
entries = st.integers(0, 5) | st.integers(126, 130) | st.integers(8190, 8194)
indexes = st.just(-1) | st.integers(0, 3) | st.integers(62, 66) | st.integers(126, 129)
keys = st.tuples(ledgers, entries, indexes)
dues = st.integers(0, 3)


class InOrder(RuleBasedStateMachine):
    """One index and one dict of key -> due time, of few due times and many keys."""

    make: Callable[[], DueIndex]

    @initialize()
    def begin(self) -> None:
        self.index = type(self).make()
        self.model: dict[MessageKey, int] = {}

    @rule(some=st.lists(keys, min_size=1, max_size=20), due_ms=dues)
    def add(self, some: list[MessageKey], due_ms: int) -> None:
        for key in some:
            self.index.add(key, due_ms, 0)
            self.model.setdefault(key, due_ms)

    @rule(ledger=ledgers, first=entries, count=st.integers(1, 30), due_ms=dues)
    def add_in_order(self, ledger: int, first: int, count: int, due_ms: int) -> None:
        self.add([(ledger, entry, -1) for entry in range(first, first + count)], due_ms)

    @rule(key=keys, due_ms=dues)
    def move(self, key: MessageKey, due_ms: int) -> None:
        self.index.move(key, due_ms, 0)
        self.model[key] = due_ms

    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        if self.model:
            key = data.draw(st.sampled_from(sorted(self.model)))
            assert self.index.discard(key)
            del self.model[key]

    @rule(now_ms=dues, limit=st.integers(0, 9), done=st.booleans())
    def take(self, now_ms: int, limit: int, done: bool) -> None:
        due = sorted((at, key) for key, at in self.model.items() if at <= now_ms)
        batch = self.index.pop_due(now_ms, limit)
        assert sorted((self.model[key], key) for key in batch) == due[:limit]
        for key in batch:
            del self.model[key]
        if done:
            self.index.done(batch)

    @invariant()
    def agree(self) -> None:
        self.index._check()
        assert len(self.index) == len(self.model)


@pytest.mark.parametrize("engine", ENGINES)
def test_pop_due_with_a_limit_returns_the_lowest_keys(engine: str) -> None:
    machine = type("Machine", (InOrder,), {"make": staticmethod(ENGINES[engine])})
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=settings.default.max_examples // 4,  # for each of many engines
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("max_num_buckets", [-1, 2])
def test_many_keys_of_one_due_time_are_popped_in_order_from_many_snapshots(
    seed: int, max_num_buckets: int
) -> None:
    """Random arrival spreads the keys over every snapshot; merges run on a thread meanwhile."""
    rng = random.Random(seed)
    keys = [(rng.randrange(3), entry, -1) for entry in range(4_000)]
    keys += [(1, entry, index) for entry in range(4_000, 4_030) for index in range(100)]
    rng.shuffle(keys)
    with ThreadPoolExecutor(1) as executor:
        index = SpillingIndex(
            MemoryBlobs(),
            journal=False,
            min_index_count_per_bucket=700,
            max_indexes_per_bucket_snapshot_segment=90,
            max_num_buckets=max_num_buckets,
            executor=executor,
        )
        for key in keys:
            index.add(key, 100, 0)
        popped: list[MessageKey] = []
        while batch := index.pop_due(100, rng.randrange(1, 300)):
            popped += sorted(batch)
            index.done(batch)
        assert popped == sorted(keys), f"seed {seed}"
        index.close()


def test_groups_of_blocks_start_at_the_given_position() -> None:
    blocks = [(1, 0, -1, 0), (1, 4, -1, 1), (1, 4, 0, 2), (2, 0, -1, 3)]
    assert list(groups(blocks, 2, 1, 1)) == [blocks[1:3], blocks[3:]]
    assert list(groups(blocks, 2, 1, 4)) == []
