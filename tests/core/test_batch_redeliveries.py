"""Redeliveries of a batch that other consumers requested, and the dead letters that follow.

The broker counts redeliveries of the entry, and resets the count at each partial ack. A consumer
adds the redeliveries that others requested to its own failed attempts.
"""

from __future__ import annotations

import pytest
from core_kit import make_topic_state
from hypothesis import given
from hypothesis import strategies as st

from pulsar_encore.core import attempts as module
from pulsar_encore.core.attempts import Attempts
from pulsar_encore.core.entry import Entry
from pulsar_encore.core.message_key import DueBatch
from pulsar_encore.core.nack_verdicts import DeadLetter, Verdicts
from pulsar_encore.core.topic_state import TopicState

KEY = (7, 3)


def elsewhere(*deliveries: int, asks: bool = True) -> int:
    """Return the redeliveries by others. If `asks`, this one requests one after each delivery."""
    attempts = Attempts()
    found = 0
    for count in deliveries:
        found = attempts.batch_delivered(KEY, count)
        if asks:
            attempts.batch_requested(KEY)
    return found


def test_an_attempt_counts_once_if_its_message_is_requested_twice() -> None:
    state = make_topic_state()
    entry, _ = state.arrive(KEY, 3, 0, range(3))
    assert entry is not None
    for index in range(3):
        entry.deliver(index)
    state.nack(entry, 0, 10, 0)
    assert state.release(DueBatch([], [(*KEY, 0b001)])) == [(KEY[0], [KEY[1]])]
    state.request_failed(DueBatch([], [(*KEY, 0b001)]), 20)
    state.nack(entry, 1, 20, 0)
    assert state.release(DueBatch([], [(*KEY, 0b011)])) == [(KEY[0], [KEY[1]])]
    assert [state.attempts.count(entry, index) for index in range(3)] == [1, 1, 0]
    assert state.window.earliest((*KEY, 0)) == 0, "any copy may answer the first request"


def test_redeliveries_that_this_consumer_requested_are_not_counted() -> None:
    assert elsewhere(0, 1, 2, 3) == 0


def test_redeliveries_by_others_between_two_deliveries_are_counted() -> None:
    assert elsewhere(0, 3) == 2
    assert elsewhere(0, 3, 6) == 4
    assert elsewhere(2) == 2
    assert elsewhere(2, 2, 3, asks=False) == 3


def test_the_count_is_kept_when_the_broker_counts_from_0_again() -> None:
    assert elsewhere(4, 0) == 4
    assert elsewhere(4, 1) == 4, "the one may be the request of this consumer"
    assert elsewhere(4, 3) == 6


def test_a_request_lost_with_its_connection_does_not_restart_the_count() -> None:
    assert elsewhere(0, 1, 2, 2, 3) == 0


def test_a_request_made_during_a_delivery_is_not_counted_as_by_others() -> None:
    attempts = Attempts()
    attempts.batch_requested(KEY)  # the broker counts 1 and sends the batch
    attempts.batch_requested(KEY)  # the broker counts 2 and sends it again
    assert attempts.batch_delivered(KEY, 1) == 0
    assert attempts.batch_delivered(KEY, 2) == 0


def test_a_delivery_may_count_a_request_that_was_made_before_it_arrived() -> None:
    attempts = Attempts()
    attempts.batch_requested(KEY)  # the broker counts 1 and is about to send the batch
    attempts.batch_requested(KEY)  # the broker counts 2, and reads the count as it sends the batch
    assert attempts.batch_delivered(KEY, 2) == 0
    assert attempts.batch_delivered(KEY, 2) == 0


def test_requests_of_this_consumer_cover_at_most_one_redelivery_for_each_delivery() -> None:
    attempts = Attempts()
    for _ in range(4):
        attempts.batch_requested(KEY)
    assert attempts.batch_delivered(KEY, 3) == 1


@given(st.lists(st.sampled_from(["ask", "ack", "unload", "reconnect"]), max_size=30))
def test_a_consumer_alone_on_its_subscription_counts_no_redelivery_by_others(
    events: list[str],
) -> None:
    attempts = Attempts()
    count, with_broker = 0, False
    for event in events:
        if event == "ask":
            attempts.batch_requested(KEY)
            count += not with_broker
            with_broker = True
        elif event == "ack":
            count = 0
        elif event == "unload":
            count, with_broker = 0, True
        else:
            with_broker = True
        if with_broker and event != "ack":  # it is delivered at once, or after the next ack
            assert attempts.batch_delivered(KEY, count) == 0
            with_broker = False


def test_a_message_counts_its_own_failures_and_the_redeliveries_by_others() -> None:
    attempts = Attempts(remembers=True)
    entry = Entry(None, KEY, 3, True, attempts.batch_delivered(KEY, 2))
    attempts.add_failed(entry, [1])
    attempts.remember((*KEY, 2), 0, None)
    assert [attempts.count(entry, index) for index in range(3)] == [2, 3, 3]
    assert [attempts.count_with_current(entry, index) for index in range(3)] == [3, 4, 3]
    assert [attempts.tried_here(entry, index) for index in range(3)] == [False, True, True]


def test_the_count_of_an_earlier_process_is_not_added_to_the_brokers_count() -> None:
    attempts = Attempts()
    entry = Entry(None, KEY, 3, True, attempts.batch_delivered(KEY, 2))
    attempts.recalled(entry, {0: 1, 1: 2, 2: 5})
    assert [attempts.count(entry, index) for index in range(3)] == [2, 2, 5]


def test_the_oldest_batch_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SHARED_BATCHES", 2)
    attempts = Attempts()
    for number in range(3):
        attempts.batch_delivered((7, number), 1)
    assert list(attempts.batches) == [(7, 1), (7, 2)]
    attempts.forget_batch((7, 1))
    assert list(attempts.batches) == [(7, 2)]
    attempts.clear()
    assert not attempts.batches


def test_on_exclusive_and_failover_no_redelivery_is_counted() -> None:
    attempts = Attempts(counts_redeliveries=False)
    attempts.batch_requested(KEY)
    assert attempts.batch_delivered(KEY, 5) == 0
    assert not attempts.batches


# Verdicts


def test_a_message_without_a_known_attempt_here_is_delivered_whatever_its_count() -> None:
    verdicts = Verdicts(lambda failed: 0, 2)
    assert verdicts.on_arrival(9, tried_here=False) is None
    assert verdicts.on_arrival(2) is None
    assert isinstance(verdicts.on_arrival(3), DeadLetter)


def test_a_message_is_dead_lettered_when_it_fails_after_the_maximum_of_redeliveries() -> None:
    verdicts = Verdicts(lambda failed: 0, 2)
    assert isinstance(verdicts.on_nack(2, None, 0), DeadLetter)
    assert not isinstance(verdicts.on_nack(1, None, 0), DeadLetter)
    assert [verdicts.is_last(failed) for failed in (1, 2, 3)] == [False, True, True]
    assert not Verdicts(lambda failed: 0).is_last(9), "there is no dead-letter policy"


# Through a topic state


def arrive(state: TopicState, count: int, ack_set: int = -1) -> Entry:
    left = [index for index in range(3) if ack_set >> index & 1]
    entry, positions = state.arrive(KEY, 3, count, left, ack_set)
    assert entry is not None
    for position in positions:
        entry.deliver(left[position])
    return entry


def test_releasing_several_messages_of_a_batch_counts_one_request() -> None:
    state = make_topic_state()
    arrive(state, 0)
    state.release(DueBatch([], [(*KEY, 0b111)]))
    entry = arrive(state, 2)
    assert [state.attempts.count(entry, index) for index in range(3)] == [2, 2, 2]


def test_a_packed_batch_keeps_its_redelivery_count() -> None:
    state = make_topic_state()
    entry = arrive(state, 2)
    for index in range(3):
        state.nack(entry, index, 1_000, 0)
    assert KEY in state.snapshot()["packed"]
    del entry
    again = state.find(KEY)
    assert again is not None and state.attempts.count(again, 0) == 2


def test_the_redeliveries_of_an_acked_batch_are_forgotten() -> None:
    state = make_topic_state()
    entry = arrive(state, 2)
    assert state.attempts.batches
    for index in range(3):
        state.ack(entry, index)
    assert not state.attempts.batches
