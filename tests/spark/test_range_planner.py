"""Planned batches and tasks are complete, disjoint, within their limits, and fair."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pulsar_encore.spark.batch_plan import (
    LedgerSize,
    Quota,
    TopicRange,
    admit,
    may_be_gone,
    water_fill,
)
from pulsar_encore.spark.offsets import EARLIEST, Position
from pulsar_encore.spark.task_split import Slicing, split, tasks_by_topic


@st.composite
def topic_ranges(draw: st.DrawFn) -> TopicRange:
    """Return a range of a topic with several ledgers, with any start and end."""
    sizes = draw(st.lists(st.integers(0, 60), min_size=1, max_size=6))
    assume(sum(sizes))
    ids = sorted(draw(st.sets(st.integers(1, 99), min_size=len(sizes), max_size=len(sizes))))
    ledgers = tuple(
        LedgerSize(number, size, size * draw(st.integers(1, 500)), at < len(sizes) - 1)
        for at, (number, size) in enumerate(zip(ids, sizes, strict=True))
    )
    places = [Position(each.id, entry) for each in ledgers for entry in range(each.entries)]
    low, high = sorted(draw(st.tuples(*[st.integers(-1, len(places) - 1)] * 2)))
    start = EARLIEST if low < 0 else places[low]
    if low >= 0 and draw(st.booleans()):
        start = Position(*start.entry_key, draw(st.integers(0, 5)))
    end = places[max(0, high)]
    if draw(st.booleans()):
        end = Position(*end.entry_key, draw(st.integers(6, 9)))
    return TopicRange(start, end, ledgers, draw(st.sampled_from([1.0, 3.5, 1000.0])))


def entries(topic_range: TopicRange) -> list[tuple[int, int]]:
    """Return the positions of all entries of a range, whole or in part."""
    ranges = topic_range.ledger_ranges()
    assert ranges is not None
    return [(each.ledger, entry) for each in ranges for entry in range(each.first, each.last + 1)]


topics = st.dictionaries(st.sampled_from("abcdefgh"), topic_ranges(), min_size=1)


@given(topic_ranges())
def test_a_range_contains_the_entries_between_its_ends(topic_range: TopicRange) -> None:
    expected = [
        (each.id, entry)
        for each in topic_range.ledgers
        for entry in range(each.entries)
        if topic_range.start.order < Position(each.id, entry).order
        and (each.id, entry) <= topic_range.end.entry_key
    ]
    assert entries(topic_range) == ([] if topic_range.empty else expected)


@given(topic_ranges(), st.integers(1, 20), st.booleans())
def test_parts_cover_the_whole_range_without_overlap(
    topic_range: TopicRange, parts: int, by_ledger: bool
) -> None:
    ranges = split(topic_range, parts, by_ledger=by_ledger)
    if topic_range.empty:
        assert ranges == []
        return
    assert 1 <= len(ranges) <= parts
    assert ranges[0][0] == topic_range.start
    assert ranges[-1][1] == topic_range.end
    for (_, end), (start, _) in pairwise(ranges):
        assert end == start
        assert end.batch_index == -1, "a cut is between entries"
    assert all(start.order < end.order for start, end in ranges)
    assert split(topic_range, parts, by_ledger=by_ledger) == ranges


@given(topic_ranges(), st.integers(1, 20))
def test_parts_have_nearly_the_same_size(topic_range: TopicRange, parts: int) -> None:
    total = len(entries(topic_range))
    sizes = [
        len(entries(TopicRange(start, end, topic_range.ledgers)))
        for start, end in split(topic_range, parts)
    ]
    if total:
        assert len(sizes) == min(parts, total)
        assert max(sizes) - min(sizes) <= 1


@given(topic_ranges(), st.integers(1, 20))
def test_parts_by_ledger_are_whole_ledgers(topic_range: TopicRange, parts: int) -> None:
    last = {each.id: each.entries - 1 for each in topic_range.ledgers}
    for start, _ in split(topic_range, parts, by_ledger=True)[1:]:
        assert start.entry == last[start.ledger]


@given(st.dictionaries(st.integers(0, 9), st.floats(0, 1e6)), st.floats(0, 1e6))
def test_shares_use_the_limit_and_are_as_equal_as_possible(
    wants: dict[int, float], limit: float
) -> None:
    shares = water_fill({str(key): want for key, want in wants.items()}, limit)
    total = sum(shares.values())
    assert abs(total - min(limit, sum(wants.values()))) <= 1e-6 * max(1, limit)
    level = max(shares.values(), default=0)
    for key, want in wants.items():
        share = shares[str(key)]
        assert share <= want
        assert share >= min(want, level) - 1e-6 * max(1, limit), "less than another, and wants more"


@given(topics, st.integers(1, 200))
def test_a_batch_takes_as_many_entries_as_the_limit_allows(
    read: dict[str, TopicRange], limit: int
) -> None:
    taken = taken_of(read, Quota(entries=limit))
    assert taken == min(limit, sum(len(entries(topic_range)) for topic_range in read.values()))


def taken_of(read: dict[str, TopicRange], quota: Quota) -> int:
    ends = admit(read, quota)
    assert ends.keys() == read.keys()
    total = 0
    for topic, topic_range in read.items():
        assert (
            topic_range.empty
            or topic_range.start.order <= ends[topic].order <= topic_range.end.order
        )
        total += len(entries(TopicRange(topic_range.start, ends[topic], topic_range.ledgers)))
    return total


@given(topics, st.integers(1, 5000))
def test_a_row_limit_holds_unless_a_single_entry_exceeds_it(
    read: dict[str, TopicRange], limit: int
) -> None:
    ends = admit(read, Quota(rows=limit))
    took = {
        topic: len(entries(TopicRange(topic_range.start, ends[topic], topic_range.ledgers)))
        for topic, topic_range in read.items()
    }
    rows = sum(count * read[topic].per_entry for topic, count in took.items())
    assert rows <= limit + 1e-6 or sum(took.values()) == 1
    assert sum(took.values()) >= any(not topic_range.empty for topic_range in read.values())


@given(topics, st.integers(1, 5000), st.integers(1, 50), st.integers(1, 5000))
def test_each_of_several_limits_holds(
    read: dict[str, TopicRange], rows: int, most: int, size: int
) -> None:
    together = taken_of(read, Quota(rows=rows, entries=most, size=size))
    assert together <= most
    assert together >= any(not topic_range.empty for topic_range in read.values())


@given(topics, st.integers(1, 30))
def test_batch_by_batch_everything_is_read_once(read: dict[str, TopicRange], limit: int) -> None:
    left = dict(read)
    seen: list[tuple[str, tuple[int, int]]] = []
    for _ in range(1000):
        if all(topic_range.empty for topic_range in left.values()):
            break
        ends = admit(left, Quota(entries=limit))
        for topic, topic_range in left.items():
            part = TopicRange(
                topic_range.start, ends[topic], topic_range.ledgers, topic_range.per_entry
            )
            seen += [(topic, place) for place in entries(part)]
            left[topic] = TopicRange(
                max(ends[topic], topic_range.start, key=lambda each: each.order),
                topic_range.end,
                topic_range.ledgers,
                topic_range.per_entry,
            )
    expected = [
        (topic, place) for topic, topic_range in read.items() for place in entries(topic_range)
    ]
    assert sorted(seen) == sorted(expected)


def test_one_busy_topic_leaves_a_share_to_nine_quiet_ones_and_takes_the_rest() -> None:
    ledgers = (LedgerSize(1, 10_000, 1_000_000, False),)
    read = {"hot": TopicRange(EARLIEST, Position(1, 9_999), ledgers)}
    read |= {f"quiet-{each}": TopicRange(EARLIEST, Position(1, 1), ledgers) for each in range(9)}
    ends = admit(read, Quota(entries=500))
    assert ends["hot"] == Position(1, 481)
    assert all(ends[f"quiet-{each}"] == Position(1, 1) for each in range(9))


# more than its share, more than the whole limit, and far more
@pytest.mark.parametrize("size", [600, 1000, 5000])
@pytest.mark.parametrize("small", [1, 250])
def test_large_entries_beside_small_ones_are_not_starved(size: int, small: int) -> None:
    large = TopicRange(EARLIEST, Position(1, 9), (LedgerSize(1, 10, 10, False),), float(size))
    begin = EARLIEST
    taken = []
    for batch in range(200):
        more = TopicRange(
            begin, Position(2, small * (batch + 9)), (LedgerSize(2, 10**6, 1, False),)
        )
        ends = admit({"large": large, "small": more}, Quota(rows=1000))
        assert ends == admit({"small": more, "large": large}, Quota(rows=1000))
        assert ends["large"] != large.start or ends["small"] != more.start
        if ends["large"] != large.start:
            taken.append(batch)
        large = replace(large, start=ends["large"])
        begin = ends["small"]
    assert large.empty, f"entries were taken in batches {taken}"


def test_with_more_topics_than_entries_no_topic_is_starved() -> None:
    ledgers = (LedgerSize(1, 100, 100, False),)
    left = {f"t{each}": TopicRange(EARLIEST, Position(1, 99), ledgers) for each in range(10)}
    waited = dict.fromkeys(left, 0)
    for _ in range(40):
        ends = admit(left, Quota(entries=3))
        for topic, topic_range in left.items():
            waited[topic] = 0 if ends[topic] != topic_range.start else waited[topic] + 1
            left[topic] = TopicRange(ends[topic], topic_range.end, ledgers)
        assert max(waited.values()) <= 10


def test_a_range_that_cannot_be_counted_is_read_to_its_end() -> None:
    unknown = TopicRange(Position(1, 5), Position(3, 7))
    assert unknown.ledger_ranges() is None
    assert admit({"t": unknown}, Quota(entries=2)) == {"t": Position(3, 7)}
    assert split(unknown, 4) == [(unknown.start, unknown.end)]
    # The web service gives no counts within a ledger.
    known = TopicRange(Position(3, 1), Position(3, 7))
    assert admit({"t": known}, Quota(entries=2)) == {"t": Position(3, 3)}
    assert len(split(known, 3)) == 3


def test_a_position_in_a_batch_leaves_the_rest_of_its_entry() -> None:
    topic_range = TopicRange(Position(3, 4, 2), Position(3, 6, 1))
    assert entries(topic_range) == [(3, 4), (3, 5), (3, 6)]
    assert split(topic_range, 3) == [
        (Position(3, 4, 2), Position(3, 4)),
        (Position(3, 4), Position(3, 5)),
        (Position(3, 5), Position(3, 6, 1)),
    ]


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 1000), min_size=1),
    st.integers(1, 40),
    st.none() | st.integers(1, 300),
)
def test_a_minimum_of_tasks_is_met_if_there_are_enough_entries(
    counts: dict[str, int], parts: int, most: int | None
) -> None:
    tasks = tasks_by_topic(counts, parts, most)
    assert tasks.keys() == counts.keys()
    for topic, count in counts.items():
        assert 1 <= tasks[topic] <= max(1, count)
        if most is not None:
            assert -(-count // tasks[topic]) <= most
    assert sum(tasks.values()) >= min(parts, sum(max(1, count) for count in counts.values()))


LEDGERS = (LedgerSize(7, 5, 50, True), LedgerSize(9, 0, 0, True), LedgerSize(12, 3, 30, False))


@pytest.mark.parametrize(
    ("start", "entries", "seen", "gone"),
    [
        (EARLIEST, None, (), False),
        (Position(7, 2), None, (), False),
        (Position(8, 2), None, (), False),  # after the first stored ledger, which was empty
        (Position(5, 2), None, (), True),
        (Position(5, 2), 4, (), True),
        (Position(5, 3), 4, (), False),
        (Position(5, 3, 0), 4, (), True),
        (Position(5, 3), 4, (6,), True),  # it was read to its end, and the next ledger was not read
        (Position(5, 3), 4, (7, 12), False),
    ],
)
def test_messages_that_may_be_lost_with_deleted_ledgers(
    start: Position, entries: int | None, seen: tuple[int, ...], gone: bool
) -> None:
    assert may_be_gone(start, LEDGERS, entries, seen) is gone
    assert not may_be_gone(start, (), entries, seen)  # the broker was not asked


@pytest.mark.parametrize("slicing", [Slicing(), Slicing(7), Slicing(1, 90, True)])
def test_a_serialised_plan_of_tasks_can_be_parsed(slicing: Slicing) -> None:
    assert Slicing.read(str(slicing)) == slicing
    assert Slicing.read("") == Slicing()
