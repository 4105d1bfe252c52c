"""One entry's record: ack sets, counts by message, due keys."""

from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from pulsar_encore.core.entry import ACKED, HELD, Entry


@given(st.lists(st.booleans(), min_size=1, max_size=200))
def test_remaining_is_the_unacked_indexes(acked: list[bool]) -> None:
    entry = Entry(None, (1, 2), len(acked), True, 0)
    for index, each in enumerate(acked):
        entry.state[index] = ACKED if each else HELD
    assert entry.remaining() == sum(1 << at for at, each in enumerate(acked) if not each)


def test_counts_in_a_batch_are_by_message_and_failed_looks_only() -> None:
    home = SimpleNamespace(attempts=None)
    entry = Entry(home, (1, 2), 3, True, 0)
    assert [entry.redelivery_count(index) for index in range(3)] == [0, 0, 0]
    entry.count_look(1)
    entry.count_look(1)
    entry.count_look(2)
    assert [entry.redelivery_count(index) for index in range(3)] == [0, 2, 1]


def test_of_a_message_that_is_its_entry_the_broker_counts() -> None:
    assert Entry(None, (1, 2), 1, False, 4).redelivery_count(0) == 4


def test_a_batch_of_one_waits_as_its_entry() -> None:
    assert Entry(None, (1, 2), 1, True, 0).due_key(0) == (1, 2, -1)
    assert Entry(None, (1, 2), 2, True, 0).due_key(0) == (1, 2, 0)
