"""The cost of a call on the index, in steps, does not grow with the number of waiting keys.

A step is a call, of Python or of C, or one id of a bucket that is opened or closed; eight ids that
are only looked through. A step takes 0.05 to 0.1 us, so the limits in this module stay under 50 us.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from pyroaring import BitMap64

from pulsar_encore.core import time_bucket
from pulsar_encore.core.due_index import TimeBucketIndex

FEW = 500


class Steps:
    """Counts the steps of calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken = 0
        for name, share in (("seal", 1), ("unseal", 1), ("holds", 8), ("without", 8)):
            self._count_ids(monkeypatch, name, share)

    def _count_ids(self, monkeypatch: pytest.MonkeyPatch, name: str, share: int) -> None:
        inner = getattr(time_bucket, name, None)
        if inner is None:
            return

        def counted(held: Any, *rest: int) -> Any:
            found = inner(held, *rest)
            self.taken += len(found if isinstance(found, BitMap64) else held) // share
            return found

        monkeypatch.setattr(time_bucket, name, counted)

    def __call__(self, call: Callable[[], object]) -> int:
        def event(frame: FrameType, what: str, arg: object) -> None:
            self.taken += what in ("call", "c_call")

        self.taken = 0
        sys.setprofile(event)
        try:
            call()
        finally:
            sys.setprofile(None)
        return self.taken


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch)


def scattered(count: int, due_ms: Callable[[], int]) -> tuple[TimeBucketIndex, list[int]]:
    """Entries 0, 10, 20 and so on of one ledger, each with a time; then all is idle for long."""
    index = TimeBucketIndex()
    entries = list(range(0, 10 * count, 10))
    for entry in entries:
        index.add((1, entry, -1), due_ms(), 10)
    for later in range(200):
        index.add((9, later, -1), 10**9 + later * 2000, 10)
    return index, entries


def one_bucket() -> int:
    return 5000


def many_buckets(rng: random.Random) -> Callable[[], int]:
    return lambda: rng.randrange(10**6)


@pytest.mark.parametrize("spread", ["one bucket", "1000 buckets"])
def test_calls_for_a_key_among_50_000_scattered_ones_take_few_steps(
    steps: Steps, spread: str
) -> None:
    rng = random.Random(7)
    index, entries = scattered(50_000, one_bucket if spread == "one bucket" else many_buckets(rng))
    worst: dict[str, int] = {}
    for entry in rng.sample(entries, 60):
        calls: dict[str, Callable[[], object]] = {
            "asked": lambda entry=entry: (1, entry, -1) in index,  # type: ignore[misc]
            "asked for another": lambda entry=entry: (1, entry + 1, -1) in index,  # type: ignore[misc]
            "moved": lambda entry=entry: index.move((1, entry, -1), 70_000, 10),  # type: ignore[misc]
            "discarded": lambda entry=entry: index.discard((1, entry, -1)),  # type: ignore[misc]
            "added": lambda entry=entry: index.add((1, entry, -1), 5000, 10),  # type: ignore[misc]
            "entry discarded": lambda entry=entry: index.discard_entry(1, entry),  # type: ignore[misc]
        }
        for name, call in calls.items():
            worst[name] = max(worst.get(name, 0), steps(call))
    assert max(worst.values()) <= FEW, worst
    index._check()


def test_the_first_lookup_in_a_ledger_takes_few_steps(steps: Steps) -> None:
    index = TimeBucketIndex()
    for entry in range(20_000):
        for ledger in (1, 2, 3):
            index.add((ledger, entry * 3, -1), entry, 10)
    assert steps(lambda: (2, 30_000, -1) in index) <= FEW


def test_a_cumulative_discard_takes_steps_only_for_the_keys_it_removes(steps: Steps) -> None:
    """Acks in small steps over a long ledger do not visit entries that earlier acks settled."""
    index = TimeBucketIndex()
    entries = 20_000
    for entry in range(entries):
        for batch_index in range(0, 100, 50):
            index.add((1, entry, batch_index), 10**6 + entry * 16, 10)
    taken = [steps(lambda at=at: index.discard_through(1, at)) for at in range(9, entries, 10)]  # type: ignore[misc]
    assert len(index) == 0
    assert max(taken) <= FEW
    assert sum(taken[-500:]) <= 1.5 * sum(taken[:500])


def test_pop_due_takes_steps_in_proportion_to_the_keys_it_returns(steps: Steps) -> None:
    index = TimeBucketIndex()
    rng = random.Random(3)
    for entry in range(40_000):
        index.add((1, entry, rng.randrange(1000)), 100, 10)
    bursts = []
    while index:
        bursts.append(steps(lambda: index.pop_due(2000, 1000)))
    assert len(bursts) == 40
    # The keys of 16 pages are merged, so that the lowest come first. The first burst also sorts the
    # 5,000 blocks of the bucket: 2 steps each.
    assert max(bursts[1:]) <= 8 * 1000
    assert bursts[0] <= 8 * 1000 + 2 * 5_100


def test_sealed_buckets_are_small_enough_to_open_quickly() -> None:
    index, _ = scattered(50_000, one_bucket)
    sealed = [held for held in index._buckets.values() if isinstance(held, bytes)]
    assert len(sealed) > 100
    assert max(map(len, sealed)) < 2000
