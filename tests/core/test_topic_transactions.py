"""Pending acks of one topic: counts, copies, conflicts, and the two ends of a transaction."""

from __future__ import annotations

import pytest
from core_kit import make_topic_state

from pulsar_encore.core.entry import Entry
from pulsar_encore.core.rewind_check import Admission
from pulsar_encore.core.topic_state import TopicState

KEY = (3, 7)
ALL = 1_000_000


def held(state: TopicState, size: int = 1) -> Entry:
    entry, wanted = state.arrive(KEY, size if size > 1 else 0, 0, range(size))
    assert entry is not None
    assert len(wanted) == size
    for index in range(size):
        assert entry.deliver(index)
    return entry


def commit(state: TopicState, txn: str) -> int:
    marks = state.pending_acks.take(txn)
    assert marks is not None
    return state.commit_pending(marks, ALL)


def give_up(state: TopicState, txn: str) -> list[tuple[int, list[int]]]:
    marks = state.pending_acks.take(txn)
    assert marks is not None
    return state.give_up_pending(marks)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("shared", [True, False])
def test_a_commit_leaves_nothing(size: int, shared: bool) -> None:
    state = make_topic_state(shared=shared)
    entry = held(state, size)
    assert state.ack_pending("t", entry, range(size)) == (1 << size) - 1
    state._check()
    assert state.unacked == size
    assert commit(state, "t") == 0
    state._check()
    assert (state.unacked, state.acked, len(state.pending_acks)) == (0, size, 0)
    assert state.find(KEY) is None
    assert len(state.acks) == 0, "the broker has acked it"


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("committed", [True, False])
def test_the_original_of_a_letter_does_not_count_as_acked(
    size: int, shared: bool, committed: bool
) -> None:
    state = make_topic_state(shared=shared)
    entry = held(state, size)
    assert state.begin_forwarding(entry, 0)
    assert state.ack_pending("t", entry, range(size)) == (1 << size) - 1
    state.pending_acks.note_letters("t", {entry: 1})
    state._check()
    assert state.unacked == size
    if committed:
        assert commit(state, "t") == 0
        state._check()
        assert (state.unacked, state.acked) == (0, size - 1)
        assert state.find(KEY) is None
    else:
        give_up(state, "t")
        state._check()
        assert (state.unacked, state.acked) == (0 if shared else size, 0)


def test_a_commit_can_be_made_in_steps() -> None:
    state = make_topic_state()
    entries = state.arrive_first([(1, number) for number in range(10)])
    for entry in entries:
        assert entry.deliver(0)
        state.ack_pending("t", entry, (0,))
    marks = state.pending_acks.take("t")
    assert marks is not None
    steps = 0
    while marks.masks:
        steps += 1
        state.commit_pending(marks, 4)
        state._check()
    assert (steps, state.acked, state.unacked) == (5, 10, 0)


def test_a_plain_ack_of_a_sibling_is_still_sent() -> None:
    state = make_topic_state()
    entry = held(state, 3)
    state.ack_pending("t", entry, (0, 1))
    assert state.ack(entry, 2) == 1
    assert commit(state, "t") == 1
    assert state.acks.covers(KEY)
    state._check()


@pytest.mark.parametrize("size", [1, 3])
def test_a_copy_that_came_before_the_abort_is_requested_and_counts_no_attempt(size: int) -> None:
    state = make_topic_state()
    entry = held(state, size)
    batch_size = size if size > 1 else 0
    state.ack_pending("t", entry, range(size))
    assert not state.arrive(KEY, batch_size, 1, range(size))[1]
    assert give_up(state, "t") == [(3, [7])]
    state._check()
    again, wanted = state.arrive(KEY, batch_size, 2, range(size))
    assert again is not None
    assert len(wanted) == size
    assert [state.attempts.count(again, index) for index in range(size)] == [0] * size


@pytest.mark.parametrize("size", [1, 3])
def test_an_abort_without_a_copy_waits_for_the_broker(size: int) -> None:
    state = make_topic_state()
    entry = held(state, size)
    state.ack_pending("t", entry, range(size))
    assert give_up(state, "t") == []
    assert state.unacked == 0
    again, wanted = state.arrive(KEY, size if size > 1 else 0, 1, range(size))
    assert again is not None
    assert len(wanted) == size
    assert state.attempts.count(again, 0) == 0
    state._check()


def test_an_ack_that_failed_is_requested_at_the_abort() -> None:
    state = make_topic_state()
    entry = held(state)
    mask = state.ack_pending("t", entry, (0,))
    state.pending_acks.note_failure(entry, mask)
    assert give_up(state, "t") == [(3, [7])]


def test_the_copies_of_another_transaction_stay() -> None:
    state = make_topic_state()
    entry = held(state, 2)
    state.ack_pending("a", entry, (0,))
    state.ack_pending("b", entry, (1,))
    assert not state.arrive(KEY, 2, 0, (1,))[1]
    commit(state, "a")
    assert give_up(state, "b") == [(3, [7])]
    state._check()


def test_on_exclusive_an_abort_holds_the_messages_until_the_rewind() -> None:
    state = make_topic_state(shared=False)
    entry = held(state, 3)
    state.ack_pending("t", entry, (0, 1))
    assert give_up(state, "t") == []
    assert state.unacked == 3
    state.release_all()
    assert (state.unacked, state.outstanding) == (0, 1)
    state._check()


def test_a_rewind_does_not_wait_for_pending_messages() -> None:
    state = make_topic_state(shared=False)
    entry = held(state, 2)
    message_delivery = entry.delivery_number(1)
    state.ack_pending("t", entry, (0,))
    state.release_all()
    assert state.outstanding == 1
    assert not state.is_latest_delivery(entry, 1, message_delivery)
    state.ack(entry, 1)  # by the message of the delivery before
    assert state.outstanding == 0
    assert state.rewind is not None
    assert state.rewind.judge((3, 8), 0) is Admission.ADMIT
    commit(state, "t")
    assert state.unacked == 0
    state._check()


@pytest.mark.parametrize(
    ("first", "second", "conflict"),
    [("single", "single", False), ("single", "cumulative", True), ("cumulative", "single", True)],
)
@pytest.mark.parametrize("txn", ["same", "other"])
def test_cumulative_and_single_acks_exclude_each_other(
    first: str, second: str, conflict: bool, txn: str
) -> None:
    state = make_topic_state(shared=False)
    if first == "single":
        state.ack_pending("same", held(state), (0,))
    else:
        state.ack_pending_through("same", KEY, -1, 1)  # by id: nothing is held
    cumulative = second == "cumulative"
    assert state.pending_acks.conflicts_with(txn, cumulative=cumulative) is conflict


def test_a_second_cumulative_ack_belongs_to_the_same_transaction() -> None:
    state = make_topic_state(shared=False)
    state.ack_pending_through("a", KEY, -1, 1)
    assert not state.pending_acks.conflicts_with("a", cumulative=True)
    assert state.pending_acks.conflicts_with("b", cumulative=True)


def test_a_seek_forgets_pending_acks() -> None:
    state = make_topic_state()
    state.ack_pending("t", held(state), (0,))
    state.reset()
    assert state.pending_acks.take("t") is None
    assert state.unacked == 0
    state._check()
