"""A range yields each of its messages once and in order, despite redeliveries and split entries."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pulsar_encore.spark.offsets import EARLIEST, Position
from pulsar_encore.spark.reader.range_filter import DeliverySlice, RangeFilter
from pulsar_encore.transport.interface import Delivery

Topic = list[tuple[int, int, int]]
"""(ledger, entry, batch size) of each entry; 0 for a message that is its entry."""


def delivery(ledger: int, entry: int, size: int, indexes: range | None = None) -> Delivery:
    which = indexes if indexes is not None else range(max(1, size))
    messages: Any = [(ledger, entry, index) for index in which]
    return Delivery(0, ledger, entry, size, 0, which, messages)


def taken(slices: list[DeliverySlice | None]) -> list[Any]:
    return [
        message
        for each in slices
        if each is not None
        for message in each[0].messages[each[1] : each[2]]
    ]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Topic, Position, Position, Random]:
    sizes = draw(st.lists(st.sampled_from([0, 1, 2, 5]), min_size=1, max_size=12))
    ledger, entry = 3, 0
    topic = []
    for size in sizes:
        if draw(st.integers(0, 4)) == 0:
            ledger, entry = ledger + draw(st.integers(1, 3)), 0
        # a marker, or an entry that compaction removed
        entry += draw(st.sampled_from([0, 0, 0, 1, 2]))
        topic.append((ledger, entry, size))
        entry += 1

    def position() -> Position:
        at, number, size = draw(st.sampled_from(topic))
        return Position(at, number, draw(st.integers(-1, size - 1)) if size else -1)

    start = draw(st.sampled_from([EARLIEST, position()]))
    return topic, start, position(), Random(draw(st.integers(0, 2**32)))


def expected(topic: Topic, start: Position, end: Position) -> list[Any]:
    return [
        (ledger, entry, index)
        for ledger, entry, size in topic
        for index in range(max(1, size))
        if start.order < Position(ledger, entry, index if size else -1).order <= end.order
    ]


@given(worlds())
def test_reconnects_that_redeliver_entries_yield_each_message_once(
    world: tuple[Topic, Position, Position, Random],
) -> None:
    topic, start, end, rng = world
    range_filter = RangeFilter(start, end, whole=True)
    slices = []
    at = max(0, sum(1 for each in topic if each[:2] < start.entry_key) - rng.randrange(3))
    while at < len(topic) and not range_filter.done:
        slices.append(range_filter.take(delivery(*topic[at])))
        at = at + 1 if rng.random() < 0.7 else max(0, at - rng.randrange(4))
    assert taken(slices) == expected(topic, start, end)
    assert range_filter.done or end.order >= Position(*topic[-1][:2]).order


@given(worlds())
def test_a_transport_that_splits_entries_yields_each_message_once(
    world: tuple[Topic, Position, Position, Random],
) -> None:
    topic, start, end, rng = world
    range_filter = RangeFilter(start, end, whole=False)
    slices = []
    for ledger, entry, size in topic:
        first = 0
        while first < max(1, size):
            stop = rng.randrange(first, max(1, size)) + 1
            slices.append(range_filter.take(delivery(ledger, entry, size, range(first, stop))))
            first = stop
    assert taken(slices) == expected(topic, start, end)


@given(worlds())
def test_a_reconnect_continues_after_finished_entries(
    world: tuple[Topic, Position, Position, Random],
) -> None:
    topic, start, end, rng = world
    first = RangeFilter(start, end, whole=True)
    stop = rng.randrange(len(topic) + 1)
    slices = [first.take(delivery(*each)) for each in topic[:stop]]
    again = RangeFilter(first.last, end, whole=True)
    if not first.done:
        slices += [again.take(delivery(*each)) for each in topic]
    assert taken(slices) == expected(topic, start, end)


def test_a_range_can_end_at_an_entry_that_is_no_message() -> None:
    range_filter = RangeFilter(EARLIEST, Position(3, 5), whole=True)
    assert range_filter.take(delivery(3, 4, 2)) is not None
    assert not range_filter.done
    range_filter.skip(3, 5)
    assert range_filter.done
    assert range_filter.last == Position(3, 5)


def test_a_range_with_its_end_before_its_start_is_empty() -> None:
    """This occurs after a crash in the first batch of a query that begins at the end."""
    range_filter = RangeFilter(Position(3, 5), Position(3, 2), whole=True)
    assert range_filter.done
    assert range_filter.take(delivery(3, 2, 0)) is None
