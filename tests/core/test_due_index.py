"""Each test checks one promise of every due index, or the values that it is built from."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64
from test_due_index_model import ENGINES

from pulsar_encore.core.due_index import (
    DueIndex,
    MessageKey,
    TimeBucketIndex,
    bucket_edge,
    precision_bits,
)
from pulsar_encore.core.message_key import MAX_BATCH_INDEX
from pulsar_encore.core.sealed_bucket import holds, listed, seal, size_of, tag_of, unseal, without
from pulsar_encore.errors import ConfigurationError


@pytest.fixture(params=ENGINES.values(), ids=ENGINES.keys())
def index(request: pytest.FixtureRequest) -> DueIndex:
    make: Callable[[], DueIndex] = request.param
    return make()


def test_a_key_is_due_never_early_and_late_by_less_than_a_bucket(index: DueIndex) -> None:
    index.add((1, 1, -1), 1001, 6)
    due = index.next_due()
    assert due is not None and 1001 <= due < 1001 + 64
    assert list(index.pop_due(due - 1)) == []
    assert list(index.pop_due(due)) == [(1, 1, -1)]
    assert index.next_due() is None


def test_a_stream_of_adds_does_not_postpone_earlier_keys(index: DueIndex) -> None:
    """The stock client re-arms one timer for all, so a nack each 100 ms starves the first."""
    seen: dict[MessageKey, int] = {}
    for now_ms in range(0, 12_000, 20):
        if now_ms % 100 == 0:
            index.add((1, now_ms, -1), now_ms + 3000, precision_bits(3000))
        for key in index.pop_due(now_ms):
            seen[key] = now_ms
    assert min(seen.values()) < 3100
    assert all(3000 <= at - key[1] < 3000 + 64 + 20 for key, at in seen.items())
    assert len(seen) == 90


def test_a_shorter_delay_is_not_held_up_by_a_longer_one(index: DueIndex) -> None:
    index.add((1, 1, -1), 4000, 0)
    index.add((1, 2, -1), 200, 0)
    assert index.next_due() == 200
    assert list(index.pop_due(200)) == [(1, 2, -1)]
    assert index.next_due() == 4000


def test_buckets_of_different_widths_with_one_edge_are_shared(index: DueIndex) -> None:
    index.add((1, 2, -1), 60, 6)
    index.add((1, 1, -1), 63, 3)
    batch = index.pop_due(64)
    assert [(ledger, list(entries)) for ledger, entries in batch.entries] == [(1, [1, 2])]


def test_a_key_added_twice_counts_once_and_keeps_its_due_time(index: DueIndex) -> None:
    assert index.add((1, 1, 0), 100, 0)
    assert not index.add((1, 1, 0), 50, 0)
    assert not index.add((1, 1, 0), 500, 0)
    assert len(index) == 1
    assert index.next_due() == 100
    assert list(index.pop_due(1000)) == [(1, 1, 0)]


@pytest.mark.parametrize(
    "key",
    [(1, 3, -2), (1, 3, MAX_BATCH_INDEX + 1), (1, -3, -1), (-1, 3, -1), (1, 2**63, -1)],
)
@pytest.mark.parametrize("batch_index", [-1, 0])
def test_a_key_that_is_not_valid_raises_also_behind_keys_in_order(
    index: DueIndex, key: MessageKey, batch_index: int
) -> None:
    for entry in range(3):
        index.add((1, entry, batch_index), 10, 4)
    with pytest.raises(ConfigurationError):
        index.add(key, 10, 4)
    for due_ms, bits in ((-1, 4), (10, -1), (10, 41)):
        with pytest.raises(ConfigurationError):
            index.add((1, 3, batch_index), due_ms, bits)
    assert len(index) == 3


@pytest.mark.parametrize("batch_index", [-1, 5])
@pytest.mark.parametrize("change", ["pop", "part", "discard", "move", "through", "entry", "clear"])
def test_keys_in_order_continue_after_every_change(
    index: DueIndex, change: str, batch_index: int
) -> None:
    """A key that continues its run takes a short way, which each change must end."""
    due: dict[MessageKey, int] = {}
    for entry in range(400):
        key = (1, entry, batch_index)
        due_ms = 1 + 16 * (entry // 40)  # 40 keys in each bucket
        assert index.add(key, due_ms, 4)
        assert not index.add(key, due_ms + 16, 4)
        due[key] = bucket_edge(due_ms, 4)
        if entry % 7 == 6:
            if change in ("pop", "part"):
                taken = list(index.pop_due(due_ms + 15, None if change == "pop" else 3))
                assert taken == list(due)[: len(taken)]
            elif change == "discard":
                assert index.discard(key)
                taken = [key]
            elif change == "move":
                assert index.move(key, due_ms + 32, 4)
                due[key] += 32
                taken = []
            elif change == "entry":
                assert index.discard_entry(1, entry - 1) == 1
                taken = [(1, entry - 1, batch_index)]
            elif change == "through":
                taken = list(due)[:-2]
                assert index.discard_through(1, entry - 2) == len(taken)
            else:
                index.clear()
                taken = list(due)
            for each in taken:
                del due[each]
            index._check()
            assert len(index) == len(due)
    assert all(index.due_of(key) in (None, due[key]) for key in due)
    assert set(index.pop_due(10**6)) == due.keys()


def test_move_sets_a_later_or_earlier_due_time_and_adds_a_missing_key(index: DueIndex) -> None:
    index.add((1, 1, -1), 100, 0)
    assert index.move((1, 1, -1), 500, 0)
    assert not index.pop_due(499)
    assert index.move((1, 1, -1), 20, 0)
    assert not index.move((1, 2, -1), 30, 0)
    assert list(index.pop_due(1000)) == [(1, 1, -1), (1, 2, -1)]


def test_a_discarded_key_does_not_come_due(index: DueIndex) -> None:
    index.add((1, 1, -1), 100, 0)
    assert index.discard((1, 1, -1))
    assert not index.discard((1, 1, -1))
    assert (1, 1, -1) not in index
    assert index.next_due() is None
    assert not index.pop_due(1000)


def test_keys_of_a_bucket_are_popped_in_the_order_of_message_ids(index: DueIndex) -> None:
    keys = [(ledger, entry, -1) for ledger in (3, 5, 7) for entry in range(40)]
    for key in random.Random(4).sample(keys, len(keys)):
        index.add(key, 10, 0)
    index.add((1, 0, -1), 11, 0)
    assert list(index.pop_due(11)) == [*keys, (1, 0, -1)]


def test_pop_due_returns_one_group_for_each_ledger(index: DueIndex) -> None:
    entries = [*range(0, 50), *range(60, 90, 3)]
    for entry in entries:
        index.add((8, entry, -1), 10, 0)
    ((ledger, group),) = index.pop_due(10).entries
    assert (ledger, list(group)) == (8, entries)


def test_pop_due_with_a_limit_leaves_the_rest_due(index: DueIndex) -> None:
    keys = [(1, entry, -1) for entry in range(10)]
    for key in reversed(keys):
        index.add(key, 10, 0)
    assert not index.pop_due(10, 0)
    first = list(index.pop_due(10, 4))
    assert len(first) == 4 and first == sorted(first)
    assert len(index) == 6 and index.next_due() == 10
    assert index.add(first[0], 10, 0)
    assert list(index.pop_due(10, 100)) == [key for key in keys if key not in first[1:]]


def test_pop_due_returns_messages_of_a_batch_as_one_mask(index: DueIndex) -> None:
    for batch_index in (0, 3, 999):
        index.add((2, 6, batch_index), 10, 0)
    index.add((2, 5, 1), 10, 0)
    index.add((2, 6, -1), 10, 0)
    batch = index.pop_due(10)
    assert batch.indexes == [(2, 5, 0b10), (2, 6, 1 | 1 << 3 | 1 << 999)]
    assert len(batch) == 5
    assert list(batch) == [(2, 6, -1), (2, 5, 1), (2, 6, 0), (2, 6, 3), (2, 6, 999)]


def test_pop_due_returns_entries_of_batches_in_order_whatever_their_size(index: DueIndex) -> None:
    for key in ((2, 7, 0), (2, 6, 700), (2, 7, 700), (1, 9, 1)):
        index.add(key, 10, 0)
    assert [(ledger, entry) for ledger, entry, _ in index.pop_due(10).indexes] == [
        (1, 9),
        (2, 6),
        (2, 7),
    ]


@pytest.mark.parametrize("emptied_by", ["drain", "discard"])
def test_a_bucket_can_be_used_again_after_it_was_emptied(index: DueIndex, emptied_by: str) -> None:
    index.add((1, 9, -1), 10, 0)
    index.add((1, 8, -1), 10, 0)
    index.add((1, 1, -1), 5, 0)
    if emptied_by == "drain":
        index.pop_due(5)
    else:
        index.discard((1, 1, -1))
    assert index.discard((1, 8, -1))
    index.add((1, 3, -1), 5, 0)
    index._check()
    assert index.discard((1, 3, -1))
    assert list(index.pop_due(10)) == [(1, 9, -1)]


def test_two_messages_of_one_entry_keep_their_own_times(index: DueIndex) -> None:
    index.add((1, 1, 0), 1000, 0)
    index.add((1, 1, 1), 3000, 0)
    assert list(index.pop_due(1000)) == [(1, 1, 0)]
    assert list(index.pop_due(3000)) == [(1, 1, 1)]


def test_discard_entry_removes_all_keys_of_the_entry_and_no_other(index: DueIndex) -> None:
    for key in ((1, 4, -1), (1, 5, -1), (1, 5, 0), (1, 5, 700), (1, 6, 0), (2, 5, 0)):
        index.add(key, 10 + key[2] % 7, 0)
    assert index.discard_entry(1, 5) == 3
    assert index.discard_entry(1, 5) == 0
    assert sorted(index.pop_due(100)) == [(1, 4, -1), (1, 6, 0), (2, 5, 0)]


def test_discard_through_is_cumulative(index: DueIndex) -> None:
    for ledger in (1, 2, 3):
        for entry in range(20):
            index.add((ledger, entry, entry % 3 - 1), 10 + entry, 2)
    assert index.discard_through(2, 9) == 30
    assert len(index) == 30
    assert min((key[0], key[1]) for key in index.pop_due(100)) == (2, 10)


def test_the_largest_ids_and_due_times_are_accepted(index: DueIndex) -> None:
    largest = 2**63 - 1
    keys = [(largest, largest, -1), (largest, largest, MAX_BATCH_INDEX), (0, 0, 0), (0, largest, 5)]
    for key in keys:
        assert index.add(key, largest, 40)
        assert key in index
    assert not index.pop_due(largest)
    assert sorted(index.pop_due(2**63)) == sorted(keys)
    index._check()


@pytest.mark.parametrize(
    "key",
    [(-1, 0, -1), (0, -1, -1), (0, 0, -2), (2**63, 0, -1), (0, 2**63, -1), (0, 0, 2**20)],
    ids=str,
)
def test_the_error_names_a_message_key_out_of_range(index: DueIndex, key: MessageKey) -> None:
    index.add((1, 1, -1), 5, 0)
    for call in (
        lambda: index.add(key, 10, 0),
        lambda: index.move(key, 10, 0),
        lambda: index.discard(key),
        lambda: key in index,
    ):
        with pytest.raises(ConfigurationError, match="message key"):
            call()
    assert list(index.pop_due(10)) == [(1, 1, -1)]


def test_the_error_names_a_due_time_or_limit_out_of_range(index: DueIndex) -> None:
    for due_ms, bits in ((-1, 0), (2**63, 0), (0, -1), (0, 41)):
        with pytest.raises(ConfigurationError, match="due time"):
            index.add((1, 1, -1), due_ms, bits)
        with pytest.raises(ConfigurationError, match="due time"):
            index.move((1, 1, -1), due_ms, bits)
    for ledger, entry in ((-1, 0), (0, -1)):
        with pytest.raises(ConfigurationError):
            index.discard_entry(ledger, entry)
        with pytest.raises(ConfigurationError):
            index.discard_through(ledger, entry)
    with pytest.raises(ConfigurationError, match="limit"):
        index.pop_due(0, -1)
    assert len(index) == 0
    index._check()


def test_an_emptied_index_can_be_reused(index: DueIndex) -> None:
    for turn in range(3):
        for entry in range(100):
            assert index.add((turn, entry, -1), 10 + entry, 3)
        assert len(index.pop_due(1000)) == 100
        assert len(index) == 0 and index.next_due() is None
        index._check()


@pytest.mark.parametrize(
    ("delay_ms", "width_ms"),
    [(0, 32), (2000, 32), (20_000, 32), (32_768, 32), (32_769, 512), (3_600_000, 32768)],
)
def test_the_width_of_a_bucket_follows_the_delay(delay_ms: int, width_ms: int) -> None:
    assert 2 ** precision_bits(delay_ms) == width_ms


def test_fixed_precision_bits_replace_the_computed_ones_and_are_checked() -> None:
    assert precision_bits(3_600_000, 8) == 8
    assert precision_bits(0, 0) == 0
    for bits in (-1, 41):
        with pytest.raises(ConfigurationError, match="precision bits"):
            precision_bits(1000, bits)
    with pytest.raises(ConfigurationError, match="negative"):
        precision_bits(-1)


@given(due_ms=st.integers(0, 2**62), bits=st.integers(0, 40))
def test_a_due_time_is_rounded_up_by_less_than_a_bucket(due_ms: int, bits: int) -> None:
    edge = bucket_edge(due_ms, bits)
    assert 0 <= edge - due_ms < 2**bits
    assert edge % 2**bits == 0


near = st.sets(st.integers(0, 3000), max_size=80)
runs = st.builds(
    lambda at, size: set(range(at, at + size)), st.integers(0, 5000), st.integers(0, 999)
)
far = st.sets(st.integers(0, 2**48 - 1), max_size=9)


some_ids = (st.builds(set.union, near, runs, far) | near | runs).filter(bool)


@given(ids=some_ids, tag=st.integers(0, 2**31 - 1))
def test_a_sealed_bucket_opens_to_the_same_ids(ids: set[int], tag: int) -> None:
    sealed = seal(BitMap64(ids), tag)
    if sealed is None:
        assert len(BitMap64(ids).serialize()) > 200
        return
    assert set(unseal(sealed)) == ids
    assert list(listed(sealed)) == list(listed(BitMap64(ids))) == sorted(ids)
    assert size_of(sealed) == size_of(BitMap64(ids)) == len(ids)
    assert tag_of(sealed) == tag
    around = {each + by for each in ids for by in (-1, 0, 1, 255) if each + by >= 0}
    assert {each for each in around if holds(sealed, each)} == ids & around


@given(
    ids=some_ids | st.sets(st.integers(0, 9).map((255).__mul__), min_size=1),
    cuts=st.lists(
        st.tuples(st.integers(0, 3100), st.sampled_from([1, 1, 2, 40, 255, 600])), max_size=12
    ),
)
def test_ids_are_removed_from_a_sealed_bucket_without_opening_it(
    ids: set[int], cuts: list[tuple[int, int]]
) -> None:
    held: BitMap64 | bytes | None = seal(BitMap64(ids), 7)
    for start, size in cuts:
        if not isinstance(held, bytes) or not held:
            break
        removed = {each for each in ids if start <= each < start + size}
        ids -= removed
        held, count = without(held, start, start + size)
        assert count == len(removed)
        left = held
        if isinstance(held, bytes) and held:
            assert tag_of(held) == 7
            left = unseal(held)
        assert set(left) == ids
        assert size_of(held) == len(ids) if held else not ids


@pytest.mark.parametrize("limit", [None, 3])
def test_messages_of_a_long_batch_are_popped_as_one_mask(
    index: DueIndex, limit: int | None
) -> None:
    for entry in (4, 3):
        for batch_index in (130, 70, 64, 63, 0):
            index.add((1, entry, batch_index), 10, 0)
    taken: list[tuple[int, int, int]] = []
    while batch := index.pop_due(10, limit):
        assert len({each[:2] for each in batch.indexes}) == len(batch.indexes)
        taken += batch.indexes
    if limit is None:
        mask = 1 << 130 | 1 << 70 | 1 << 64 | 1 << 63 | 1
        assert taken == [(1, 3, mask), (1, 4, mask)]
    assert sum(mask.bit_count() for _, _, mask in taken) == 10
    assert [each[:2] for each in taken] == sorted(each[:2] for each in taken)


def test_buckets_that_stopped_growing_are_sealed_and_can_still_change() -> None:
    index = TimeBucketIndex()
    for entry in range(20_000):
        index.add((1, entry, -1), entry, 10)
    sealed = [ids for ids in index._buckets.values() if isinstance(ids, bytes)]
    assert len(sealed) >= 16
    assert sum(map(len, sealed)) < 64 * len(sealed)
    assert index.add((2, 0, -1), 1000, 10)
    assert index.discard((1, 1500, -1))
    index._check()
    keys = [(1, entry, -1) for entry in range(2049) if entry != 1500]
    assert sorted(index.pop_due(2048)) == [*keys, (2, 0, -1)]


def weight(ids: BitMap64) -> int:
    sealed = seal(ids, 1)
    assert sealed is not None
    return len(sealed)


def test_sealing_chooses_the_smaller_form() -> None:
    assert weight(BitMap64(range(5000, 55_000))) < 64
    assert weight(BitMap64(random.Random(1).sample(range(10_000), 1_000))) < 1.1 * 1_000
    far_apart = BitMap64(range(0, 10 * 2**40, 2**40))
    assert weight(far_apart) < 40 * len(far_apart)


def test_a_bucket_that_would_take_long_to_open_is_not_sealed() -> None:
    assert seal(BitMap64(random.Random(1).sample(range(100_000), 10_000)), 1) is None
