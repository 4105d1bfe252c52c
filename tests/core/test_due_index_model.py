"""Every due index against a plain dict, by random calls; `_check()` after each.

Ids, due times and thresholds are small, so that keys collide, edges meet, buckets are sealed and
opened again, and partial drains cut groups. A new engine is one more line in `ENGINES`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
from pulsar_encore.state import MemoryBlobs, SpillingIndex


def spilling(**options: Any) -> Callable[[], DueIndex]:
    return lambda: SpillingIndex(MemoryBlobs(), **options)


ENGINES: dict[str, Callable[[], DueIndex]] = {
    "time buckets": TimeBucketIndex,
    "time buckets, small blocks": lambda: TimeBucketIndex(
        open_buckets=2, block_bits=2, page_bits=1
    ),
    "time buckets, sealed at once": lambda: TimeBucketIndex(
        open_buckets=0, block_bits=1, page_bits=1
    ),
    "spilling": spilling(),
    "spilling, sealed at once": spilling(min_index_count_per_bucket=1),
    "spilling, merged at once": spilling(
        min_index_count_per_bucket=2, max_indexes_per_bucket_snapshot_segment=3, max_num_buckets=1
    ),
    "spilling, no journal": spilling(
        journal=False,
        min_index_count_per_bucket=7,
        max_indexes_per_bucket_snapshot_segment=2,
        max_num_buckets=3,
    ),
}

ledgers = st.integers(0, 3)
entries = st.integers(0, 9) | st.integers(2**40, 2**40 + 1)
keys = st.tuples(ledgers, entries, st.integers(-1, 4))
dues = st.integers(0, 60)
widths = st.integers(0, 4)


class AgainstModel(RuleBasedStateMachine):
    """One index and one dict of key -> rounded due time."""

    make: Callable[[], DueIndex]

    @initialize()
    def begin(self) -> None:
        self.index = type(self).make()
        self.model: dict[MessageKey, int] = {}

    @rule(key=keys, due_ms=dues, bits=widths)
    def add(self, key: MessageKey, due_ms: int, bits: int) -> None:
        assert self.index.add(key, due_ms, bits) is (key not in self.model)
        self.model.setdefault(key, edge(due_ms, bits))

    @rule(ledger=ledgers, first=st.integers(0, 9), count=st.integers(1, 60), due_ms=dues)
    def add_in_order(self, ledger: int, first: int, count: int, due_ms: int) -> None:
        for entry in range(first, first + count):
            self.add((ledger, entry, -1), due_ms + entry // 20, 2)

    @rule(key=keys, due_ms=dues, bits=widths)
    def move(self, key: MessageKey, due_ms: int, bits: int) -> None:
        assert self.index.move(key, due_ms, bits) is (key in self.model)
        self.model[key] = edge(due_ms, bits)

    @rule(key=keys)
    def discard(self, key: MessageKey) -> None:
        assert self.index.discard(key) is (key in self.model)
        self.model.pop(key, None)

    @rule(data=st.data())
    def discard_tracked(self, data: st.DataObject) -> None:
        if self.model:
            self.discard(data.draw(st.sampled_from(sorted(self.model))))

    @rule(ledger=ledgers, entry=entries)
    def discard_entry(self, ledger: int, entry: int) -> None:
        removed = [key for key in self.model if key[:2] == (ledger, entry)]
        assert self.index.discard_entry(ledger, entry) == len(removed)
        self.forget(removed)

    @rule(ledger=ledgers, entry=entries)
    def discard_through(self, ledger: int, entry: int) -> None:
        removed = [key for key in self.model if key[:2] <= (ledger, entry)]
        assert self.index.discard_through(ledger, entry) == len(removed)
        self.forget(removed)

    @rule(now_ms=dues)
    def pop_all(self, now_ms: int) -> None:
        due = [key for key, at in self.model.items() if at <= now_ms]
        batch = self.index.pop_due(now_ms)
        assert len(batch) == len(due)
        assert sorted(batch) == sorted(due)
        self.forget(due)

    @rule(now_ms=dues, limit=st.integers(0, 12))
    def pop_some(self, now_ms: int, limit: int) -> None:
        due = sorted(at for at in self.model.values() if at <= now_ms)
        batch = self.index.pop_due(now_ms, limit)
        popped = list(batch)
        assert len(batch) == len(popped) == len(set(popped)) == min(limit, len(due))
        # The earliest buckets first, whatever is left of the last one.
        assert sorted(self.model[key] for key in popped) == due[: len(popped)]
        self.forget(popped)

    @rule()
    def clear(self) -> None:
        self.index.clear()
        self.model.clear()

    @rule(key=keys)
    def contains(self, key: MessageKey) -> None:
        assert (key in self.index) is (key in self.model)

    @invariant()
    def agree(self) -> None:
        self.index._check()
        assert len(self.index) == len(self.model)
        assert self.index.next_due() == min(self.model.values(), default=None)

    def forget(self, removed: list[MessageKey]) -> None:
        for key in removed:
            del self.model[key]


def edge(due_ms: int, bits: int) -> int:
    width = 2**bits
    return (due_ms + width - 1) // width * width


@pytest.mark.parametrize("engine", ENGINES)
def test_a_due_index_agrees_with_a_dict(engine: str) -> None:
    machine = type("Machine", (AgainstModel,), {"make": staticmethod(ENGINES[engine])})
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=settings.default.max_examples // 2,  # for each of many engines
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
