"""One entry's record: ack sets, counts by message, due keys."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulsar_encore.core.entry import Entry


@given(st.lists(st.booleans(), min_size=1, max_size=200))
def test_remaining_is_the_unacked_indexes(acked: list[bool]) -> None:
    entry = Entry(None, (1, 2), len(acked), True)
    for index, each in enumerate(acked):
        if each:
            entry.ack(index)
    assert entry.remaining() == sum(1 << at for at, each in enumerate(acked) if not each)


def test_the_due_key_of_a_batch_of_one_names_its_entry() -> None:
    assert Entry(None, (1, 2), 1, True).due_key(0) == (1, 2, -1)
    assert Entry(None, (1, 2), 2, True).due_key(0) == (1, 2, 0)
