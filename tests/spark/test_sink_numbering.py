"""Numbers of rows: where they come from, and that a broker which goes by them has each row once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_encore.errors import ConfigurationError
from pulsar_encore.spark.sink.numbering import Numbering, numbering_of


class Context:
    def __init__(self, **said: str) -> None:
        self.said = said

    def partitionId(self) -> int:
        return 2

    def getLocalProperty(self, key: str) -> str | None:
        return self.said.get(key.replace(".", "_"))


def test_numbers_come_from_the_task() -> None:
    context = Context(sql_streaming_queryId="q", streaming_sql_batchId="7")
    found = numbering_of(context, "job")
    assert found == ("job-q-2", 7)
    assert list(found.ids(10, 2)) == [(7 << 32) + 10, (7 << 32) + 11]


@pytest.mark.parametrize(
    "context", [None, Context(), Context(sql_streaming_queryId="q")], ids=["none", "batch", "half"]
)
def test_other_tasks_have_none(context: Context | None) -> None:
    with pytest.raises(ConfigurationError, match="needs a streaming query"):
        numbering_of(context, "job")


def test_a_task_has_no_more_rows_than_numbers() -> None:
    numbering = Numbering("p", 1)
    assert numbering.ids((1 << 32) - 1, 1)[0] == (2 << 32) - 1
    with pytest.raises(ConfigurationError, match="give the micro-batch more tasks"):
        numbering.ids((1 << 32) - 1, 2)


@given(
    st.lists(st.tuples(st.integers(0, 20), st.lists(st.integers(0, 20), max_size=3)), max_size=6)
)
def test_a_broker_that_goes_by_numbers_has_each_row_once(
    batches: Sequence[tuple[int, Sequence[int]]],
) -> None:
    """Attempts that were killed after some rows, then one that came to its end."""
    stored: list[tuple[int, int]] = []
    highest = -1
    for batch_id, (rows, killed_after) in enumerate(batches):
        for attempt in (*killed_after, rows):
            ids = Numbering("p", batch_id).ids(0, rows)
            for row, number in list(enumerate(ids))[:attempt]:
                if number > highest:  # as a broker deduplicates, by producer
                    highest = number
                    stored.append((batch_id, row))
    assert stored == [(n, row) for n, (rows, _) in enumerate(batches) for row in range(rows)]
