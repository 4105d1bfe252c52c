"""Records of entries that wait: they come back as they went in, and weigh next to nothing."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_encore.core.packed_entries import EntryKey, Packed, PackedEntries


@st.composite
def records(draw: st.DrawFn) -> Packed:
    size = draw(st.integers(1, 12) | st.sampled_from([130, 1000]))
    acked = draw(st.sampled_from([0, (1 << size) - 2]) | st.integers(0, (1 << size) - 1))
    rest = (1 << size) - 1 & ~acked
    nacked = draw(st.just(rest) | st.integers(0, (1 << size) - 1).map(rest.__and__))
    nacked_indexes = [index for index in range(size) if nacked >> index & 1]
    failed = draw(
        st.just({})
        | st.integers(1, 200).map(lambda failed: dict.fromkeys(nacked_indexes, failed))
        | st.dictionaries(st.integers(0, size - 1), st.integers(1, 2**20), max_size=5)
    )
    return Packed(size, acked, nacked, failed)


@given(records())
def test_a_packed_record_is_read_back_unchanged(record: Packed) -> None:
    packed = PackedEntries()
    packed.put((1, 2), record)
    assert packed.get((1, 2)) == record
    assert list(packed) == [((1, 2), record)]
    assert packed.take((1, 2)) == record
    assert packed.take((1, 2)) is None and not len(packed)


def numbered(number: int) -> Packed:
    return Packed(3, 0b100, 0b010, {2: number})


entries = st.integers(0, 60) | st.integers(2**63 - 3, 2**63 - 1)
keys = st.tuples(st.integers(0, 2), entries)
steps = st.lists(
    st.tuples(st.sampled_from(["put", "take", "get", "rising", "falling"]), keys),
    max_size=30,
)


@given(steps)
def test_packed_entries_agree_with_a_dict(script: list[tuple[str, EntryKey]]) -> None:
    packed = PackedEntries()
    model: dict[EntryKey, Packed] = {}
    for step, (what, key) in enumerate(script):
        record = numbered(step)
        if what == "put":
            packed.put(key, record)
            model[key] = record
        elif what in ("rising", "falling"):
            run = [(key[0], entry) for entry in range(20, 90)]
            for each in run if what == "rising" else reversed(run):
                packed.put(each, record)
                model[each] = record
        elif what == "take":
            assert packed.take(key) == model.pop(key, None)
        else:
            assert packed.get(key) == model.get(key)
            assert (key in packed) is (key in model)
        packed._check()
        assert len(packed) == len(model)
    assert list(packed) == sorted(model.items())
    packed.clear()
    assert not len(packed) and list(packed) == []


def one_of_ten(number: int) -> Packed:
    index = number * 7 % 10
    return Packed(10, 0b1111111111 ^ 1 << index, 1 << index)


def all_ten(number: int) -> Packed:
    return Packed(10, 0, 0b1111111111, dict.fromkeys(range(10), 1))


def one_of_a_thousand(number: int) -> Packed:
    index = number * 373 % 1000
    return Packed(1000, (1 << 1000) - 1 ^ 1 << index, 1 << index)


@pytest.mark.parametrize("make", [one_of_ten, all_ten, one_of_a_thousand])
@pytest.mark.parametrize("order", ["rising", "random", "one in a hundred"])
def test_a_packed_record_takes_under_25_bytes(make: Callable[[int], Packed], order: str) -> None:
    count = 5_000
    numbers = list(range(0, count * 100, 100) if order == "one in a hundred" else range(count))
    if order == "random":
        random.Random(1).shuffle(numbers)
    packed = PackedEntries()
    tracemalloc.start()
    try:
        for number in numbers:
            packed.put((1, number), make(number))
        snapshot = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    # Threads that other tests left may allocate meanwhile, so count only allocations of the core.
    ours = snapshot.filter_traces([tracemalloc.Filter(True, "*/pulsar_encore/core/*")])
    weight = sum(each.size for each in ours.traces)
    assert count < weight < 25 * count
    assert all(packed.get((1, number)) == make(number) for number in numbers[:100])
