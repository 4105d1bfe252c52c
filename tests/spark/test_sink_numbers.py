"""Row numbers: their origin, and that a deduplicating broker stores each row once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_encore.errors import ConfigurationError
from pulsar_encore.spark.sink.sequence_ids import SequenceIds, numbering_of


class Context:
    def __init__(self, **properties: str) -> None:
        self.properties = properties

    def partitionId(self) -> int:
        return 2

    def getLocalProperty(self, key: str) -> str | None:
        return self.properties.get(key.replace(".", "_"))


def test_numbers_are_derived_from_the_task() -> None:
    context = Context(sql_streaming_queryId="q", streaming_sql_batchId="7")
    found = numbering_of(context, "job")
    assert found == ("job-q-2", 7, 0)
    assert list(found.ids(10, 2)) == [(7 << 47) + 10, (7 << 47) + 11]
    late = numbering_of(Context(sql_streaming_queryId="q", streaming_sql_batchId="65543"), "job")
    assert (late.producer_name, late.ids(0, 1)) == ("job-q-2-1", found.ids(0, 1))
    last = SequenceIds("p", 65_535, 2**64 - 1)
    assert last.ids(0, (1 << 29) - 1)[-1] + 1 == last.mark == 2**63 - 1


@pytest.mark.parametrize(
    "context", [None, Context(), Context(sql_streaming_queryId="q")], ids=["none", "batch", "half"]
)
def test_other_tasks_have_no_numbers(context: Context | None) -> None:
    with pytest.raises(ConfigurationError, match="needs a streaming query"):
        numbering_of(context, "job")


def test_a_task_cannot_have_more_rows_than_numbers() -> None:
    numbering = SequenceIds("p", 1)
    assert numbering.ids((1 << 29) - 2, 1)[0] == (1 << 47) + (1 << 29) - 2
    with pytest.raises(ConfigurationError, match="give the micro-batch more tasks"):
        numbering.ids((1 << 29) - 2, 2)


tasks = st.lists(st.integers(0, 3), max_size=6).map(tuple)


@given(st.lists(st.lists(st.tuples(tasks, st.integers(0, 6)), min_size=1, max_size=4), max_size=5))
def test_a_row_dropped_by_the_broker_is_already_stored(
    batches: Sequence[Sequence[tuple[tuple[int, ...], int]]],
) -> None:
    """Attempts at batches have rows of their own.

    Each is killed after some rows, and the last attempt at its end.
    """
    stored: list[tuple[int, int]] = []
    highest: dict[str, int] = {}
    for batch_id, attempts in enumerate(batches):
        for at, (rows, killed_after) in enumerate(attempts):
            numbering = SequenceIds("p", batch_id, hash((len(rows), *rows)))
            if not numbering.follows(highest.get("p", -1)):
                numbering = numbering.apart()
            name = numbering.producer_name
            ended = at == len(attempts) - 1
            sent = rows if ended else rows[:killed_after]
            for row, number in zip(sent, numbering.ids(0, len(rows)), strict=False):
                if number > highest.get(name, -1):  # like a broker that deduplicates by producer
                    highest[name] = number
                    stored.append((batch_id, row))
        of_batch = Counter(row for batch, row in stored if batch == batch_id)
        last = Counter(attempts[-1][0])
        assert last <= of_batch  # no row is lost
        if all(rows == attempts[-1][0] for rows, _ in attempts):
            assert last == of_batch  # and if each attempt had the same rows, no row is stored twice


def test_a_batch_older_than_the_stored_rows_uses_another_producer_name() -> None:
    numbering = SequenceIds("p", 5, 77)
    assert numbering.follows(-1) and numbering.follows(4 << 47)
    assert numbering.follows(numbering.ids(0, 10)[-1])
    assert not numbering.follows(numbering.mark), "a row failed, others are stored after it"
    assert not numbering.follows(6 << 47)
    assert not numbering.follows(SequenceIds("p", 5, 76).ids(0, 1)[0])
    assert numbering.apart().producer_name != numbering.apart().producer_name
