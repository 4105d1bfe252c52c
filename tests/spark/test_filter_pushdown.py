"""Filters of a query reduce the messages that are read and never change the result."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from reader_kit import numbered, publish, read_ranges, source

from pulsar_encore.devbroker import BrokerSettings, BrokerThread
from pulsar_encore.spark.batch_plan import LedgerSize, TopicRange
from pulsar_encore.spark.driver.batch import NarrowedBatchReader, PulsarBatchReader
from pulsar_encore.spark.filter_pushdown import narrowing_of
from pulsar_encore.spark.offsets import EARLIEST, Position
from pulsar_encore.spark.reader.range_fetch import ReadRange
from pulsar_encore.spark.task_split import split

TOPICS = ("persistent://t/n/a", "persistent://t/n/a-partition-0", "persistent://t/n/b-partition-1")


class Stored(NamedTuple):
    """A message with the columns of its row."""

    topic: str
    partition: int
    ledgerId: int
    entryId: int
    batchIndex: int
    publishTime: int


def holds(one: Filter, row: Stored) -> bool | None:
    """Evaluate a filter like SQL: None is null, and only rows with a true result are kept."""
    if isinstance(one, Not):
        held = holds(one.child, row)
        return None if held is None else not held
    value: Any = getattr(row, one.attribute[0].removeprefix("__"))  # type: ignore[attr-defined]
    match one:
        case IsNotNull():
            return True
        case IsNull():
            return False
        case In():
            if value in one.value:
                return True
            return None if None in one.value else False
        case EqualNullSafe():
            return bool(value == one.value)
    given_value: Any = one.value  # type: ignore[attr-defined]
    if given_value is None:
        return None
    match one:
        case EqualTo():
            return bool(value == given_value)
        case GreaterThan():
            return bool(value > given_value)
        case GreaterThanOrEqual():
            return bool(value >= given_value)
        case LessThan():
            return bool(value < given_value)
        case LessThanOrEqual():
            return bool(value <= given_value)
        case StringContains():
            return given_value in value
        case StringStartsWith():
            return bool(value.startswith(given_value))
        case StringEndsWith():
            return bool(value.endswith(given_value))
    raise AssertionError(one)


def filters_of(column: str, value: st.SearchStrategy[Any], text: bool) -> st.SearchStrategy[Filter]:
    name = st.just((f"__{column}",))
    maybe = st.one_of(*[value] * 5, st.none())
    kinds: list[st.SearchStrategy[Filter]] = [
        st.builds(kind, name, maybe)
        for kind in (
            EqualTo,
            EqualNullSafe,
            GreaterThan,
            GreaterThanOrEqual,
            LessThan,
            LessThanOrEqual,
        )
    ]
    kinds += [st.builds(In, name, st.lists(maybe, max_size=3).map(tuple))]
    kinds += [st.builds(IsNull, name), st.builds(IsNotNull, name)]
    if text:
        kinds += [
            st.builds(kind, name, value)
            for kind in (StringContains, StringStartsWith, StringEndsWith)
        ]
    found = st.one_of(kinds)
    return st.one_of(*[found] * 3, st.builds(Not, found))


NAMES = st.sampled_from((*TOPICS, "persistent", "a", "-partition-", "1", "zz"))
SMALL = st.integers(-1, 8)
ALL = st.one_of(
    *[filters_of("ledgerId", SMALL, False)] * 3,
    *[filters_of("entryId", SMALL, False)] * 2,
    filters_of("topic", NAMES, True),
    filters_of("partition", SMALL, False),
    filters_of("batchIndex", SMALL, False),
    filters_of("publishTime", SMALL, False),
)


@st.composite
def topics(draw: st.DrawFn) -> dict[str, tuple[LedgerSize, ...]]:
    """Return stored messages. Ledgers can be empty, and their numbers have gaps."""
    return {
        topic: tuple(
            LedgerSize(number, draw(st.integers(0, 4)), 0, closed=True)
            for number in sorted(draw(st.sets(st.integers(0, 7), min_size=2, max_size=6)))
        )
        for topic in TOPICS
    }


def messages(topic: str, ledgers: tuple[LedgerSize, ...], times: int) -> list[Stored]:
    partition = int(topic[-1]) if "partition" in topic else -1
    return [
        # Publish times are in random order.
        Stored(topic, partition, ledger.id, entry, index, hash((times, ledger.id, entry)) % 9)
        for ledger in ledgers
        for entry in range(ledger.entries)
        for index in range(2)
    ]


@given(
    stored=topics(),
    filters=st.lists(ALL, min_size=1, max_size=3),
    known=st.booleans(),
    parts=st.integers(1, 3),
    times=st.integers(),
)
def test_narrowing_does_not_change_the_filtered_result(
    stored: dict[str, tuple[LedgerSize, ...]],
    filters: list[Filter],
    known: bool,
    parts: int,
    times: int,
) -> None:
    everything = [
        each for topic, ledgers in stored.items() for each in messages(topic, ledgers, times)
    ]
    narrowing = narrowing_of(filters, NAMES)
    read = []
    for topic, ledgers in stored.items():
        here = messages(topic, ledgers, times)
        if not here or not narrowing.keeps(topic, here[0].partition):
            continue
        last = Position(here[-1].ledgerId, here[-1].entryId)
        found = ledgers if known else ()
        start, end = narrowing.span(EARLIEST, last, found)
        assert end.order <= last.order
        for begin, stop in split(TopicRange(start, end, found), parts):
            read += [
                each
                for each in here
                if begin.order < Position(each.ledgerId, each.entryId).order <= stop.order
            ]

    def kept(rows: list[Stored]) -> list[Stored]:
        return [row for row in rows if all(holds(each, row) is True for each in filters)]

    assert kept(read) == kept(everything)
    assert len(set(read)) == len(read)


NAMES = {f"__{key}": key for key in ("topic", "partition", "ledgerId", "entryId", "key")}
LEDGERS = (LedgerSize(3, 10, 0, True), LedgerSize(7, 20, 0, True), LedgerSize(12, 30, 0, False))
BEGIN, END = Position(3, -1), Position(12, 29)


def span(*filters: Filter, known: bool = True) -> tuple[Position, Position]:
    return narrowing_of(filters, NAMES).span(BEGIN, END, LEDGERS if known else ())


@pytest.mark.parametrize(
    ("filters", "start", "end"),
    [
        ([], BEGIN, END),
        ([EqualTo(("__ledgerId",), 7)], Position(7, -1), Position(7, 19)),
        ([GreaterThan(("__ledgerId",), 3)], Position(4, -1), END),
        ([LessThan(("__ledgerId",), 12)], BEGIN, Position(7, 19)),
        ([LessThanOrEqual(("__ledgerId",), 12)], BEGIN, END),
        ([In(("__ledgerId",), (3, 7))], BEGIN, Position(7, 19)),
        (
            [EqualTo(("__ledgerId",), 7), EqualTo(("__entryId",), 5)],
            Position(7, 4),
            Position(7, 5),
        ),
        ([EqualTo(("__entryId",), 5)], BEGIN, END),  # one such entry exists in each ledger
        ([EqualTo(("ledgerId",), 7)], BEGIN, END),  # a field of the value
        ([EqualTo(("__ledgerId", "x"), 7)], BEGIN, END),
        ([Not(EqualTo(("__ledgerId",), 7))], BEGIN, END),
    ],
)
def test_filters_reduce_the_entries_that_are_read(
    filters: list[Filter], start: Position, end: Position
) -> None:
    assert span(*filters) == (start, end)


def test_a_ledger_with_an_unknown_end_is_one_task() -> None:
    start, end = span(EqualTo(("__ledgerId",), 7), known=False)
    assert start == Position(7, -1)
    assert Position(7, 10**9).order < end.order < Position(8, 0).order
    assert split(TopicRange(start, end), 4) == [(start, end)]


def test_an_impossible_filter_reads_nothing() -> None:
    for filters in (
        [GreaterThan(("__ledgerId",), 12)],
        [LessThan(("__ledgerId",), 3)],
        [EqualTo(("__ledgerId",), 7), EqualTo(("__ledgerId",), 3)],
    ):
        start, end = span(*filters)
        assert start.order >= end.order or not split(TopicRange(start, end, LEDGERS), 1)


def test_filters_exclude_topics_and_partitions() -> None:
    def kept(*filters: Filter) -> list[str]:
        made = narrowing_of(filters, NAMES)
        numbers = zip(TOPICS, (-1, 0, 1), strict=True)
        return [topic for topic, number in numbers if made.keeps(topic, number)]

    assert kept() == list(TOPICS)
    assert kept(EqualTo(("__topic",), TOPICS[1])) == [TOPICS[1]]
    assert kept(StringStartsWith(("__topic",), "persistent://t/n/a")) == list(TOPICS[:2])
    assert kept(Not(EqualTo(("__topic",), TOPICS[1]))) == [TOPICS[0], TOPICS[2]]
    assert kept(In(("__partition",), (0, 5))) == [TOPICS[1]]
    assert kept(GreaterThanOrEqual(("__partition",), 0)) == list(TOPICS[1:])
    assert kept(EqualTo(("__partition",), "0")) == list(TOPICS)  # a filter that is not understood


# In PySpark's reader


@pytest.fixture
def url() -> Iterator[str]:
    with BrokerThread(BrokerSettings(keep_acked=True)) as broker:
        broker.create_partitioned_topic("parted", 3)
        yield broker.url


def reader_in(module: str, url: str) -> PulsarBatchReader:
    """Return a reader that this module of PySpark created."""
    made = source(url, topic="parted", includeMetadata="full")
    spec = ModuleSpec(module, None)
    found: dict[str, Any] = {"__spec__": spec, "made": made}
    exec("def main(): return made.reader(schema=made.schema())", found)
    reader = found["main"]()
    assert isinstance(reader, PulsarBatchReader)
    return reader


def test_filters_are_accepted_where_pyspark_supports_them_and_never_refused(url: str) -> None:
    publish(url, *numbered(30), topic="parted")
    plain = reader_in("pyspark.sql.worker.plan_data_source_read", url)
    # PySpark checks this to refuse a reader that accepts filters when filters are disabled.
    assert plain.pushFilters.__func__ is DataSourceReader.pushFilters
    assert len(plain.partitions()) == 3

    pushed = reader_in("pyspark.sql.worker.data_source_pushdown_filters", url)
    assert isinstance(pushed, NarrowedBatchReader)
    filters = [EqualTo(("__partition",), 1), IsNotNull(("__key",))]
    left = pushed.pushFilters(filters)
    # Spark applies the filters too.
    assert [id(each) for each in left] == [id(each) for each in filters]
    ranges = pushed.partitions()
    assert [each.partition for each in ranges if isinstance(each, ReadRange)] == [1]
    rows = read_ranges(pushed, ranges)
    everything = read_ranges(plain, plain.partitions())
    assert rows == [row for row in everything if row["__partition"] == 1] != []


def test_a_value_field_with_the_name_of_an_unread_column_is_not_filtered(url: str) -> None:
    publish(url, *[b'{"__partition": 7}'] * 3, topic="parted")
    made = source(url, topic="parted", valueFormat="json", valueSchema="__partition INT")
    options = made._checked_options(streaming=False)
    reader = NarrowedBatchReader(options, made.schema(), made._plan(options))
    reader.pushFilters([EqualTo(("__partition",), 7)])
    assert len(read_ranges(reader, reader.partitions())) == 3


def test_the_expected_modules_of_this_pyspark_exist() -> None:
    assert find_spec("pyspark.sql.worker.data_source_pushdown_filters") is not None
    assert find_spec("pyspark.sql.worker.plan_data_source_read") is not None
