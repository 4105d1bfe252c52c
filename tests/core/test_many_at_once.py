"""Ending many records in one step has the same result as ending each of them.

Two topic states play every history: one ends records one by one, the other in bulk. The tests
compare their observable state after each step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from core_kit import make_topic_state
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pulsar_encore.core import entry_records as module
from pulsar_encore.core import topic_release as release_module
from pulsar_encore.core.entry import Entry, ack_singles, release_singles
from pulsar_encore.core.message_states import (
    ACKED,
    AWAY,
    FORWARDING,
    HELD,
    NACKED,
    QUEUED,
    TRANSITIONS,
)
from pulsar_encore.core.topic_state import TopicState

STATES = (AWAY, QUEUED, HELD, NACKED, FORWARDING)
COUNT = 80

STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["ack", "deliver", "nack", "begin_forwarding"]),
            st.integers(0, COUNT - 1),
        ),
        st.tuples(st.sampled_from(["cumulative"]), st.integers(0, COUNT + 5)),
        st.tuples(
            st.sampled_from(["release", "part", "lose", "reconnect", "seek", "batch"]),
            st.just(0),
        ),
        st.tuples(st.just("come_again"), st.sampled_from([0, COUNT // 2])),
    ),
    max_size=12,
)


def play(
    shared: bool,
    order: list[int],
    steps: list[tuple[str, int]],
    size: int = 0,
    *,
    look: bool = True,
) -> list[Any]:
    """Play a history; without `look` only the end is observed, as a look completes a release."""
    topic_state = make_topic_state(shared=shared)
    messages: list[tuple[Entry, int]] = []
    seen: list[Any] = []

    def arrive(number: int, batch: int = 0) -> None:
        if topic_state.rewind is not None:
            topic_state.rewind.forget()
        entry, positions = topic_state.arrive((1, number), batch, 0, range(batch or 1))
        if entry is not None:
            messages.extend((entry, position) for position in positions)

    for number in order:
        arrive(number, size)
    for step, at in steps:
        result: Any = None
        if at < len(messages) and step not in ("cumulative", "deliver"):
            topic_state.find(messages[at][0].key)
        if step == "cumulative":
            if not shared:
                result = topic_state.ack_cumulative((1, at), -1, 1)
        elif step == "release":
            topic_state.release_all()
        elif step == "part":
            topic_state.complete_releases()
        elif step == "lose":
            topic_state.disconnected()
        elif step == "reconnect":
            topic_state.reconnected()
        elif step == "seek":
            topic_state.reset()
        elif step == "come_again":
            for number in order[at:]:
                arrive(number, size)
        elif step == "batch":
            arrive(COUNT + 1, 3)
        elif at < len(messages):
            entry, index = messages[at]
            if step == "deliver":
                result = entry.deliver(index)
            elif step == "begin_forwarding":
                result = topic_state.begin_forwarding(entry, index)
            elif step == "nack":
                result = topic_state.is_latest_delivery(entry, index, 0) and topic_state.nack(
                    entry, index, 1_000, 0
                )
            elif entry.live:
                result = topic_state.ack(entry, index)
        topic_state._check()
        now = (observed(topic_state), [bool(e.live) for e, _ in messages]) if look else None
        seen.append((step, result, topic_state.unacked, now))
    return [*seen, observed(topic_state), [bool(each.live) for each, _ in messages]]


def observed(topic_state: TopicState) -> Any:
    rewind = topic_state.rewind
    return (
        topic_state.unacked,
        topic_state.snapshot()["entries"],
        len(topic_state.nacks),
        len(topic_state.acks),
        dict(topic_state.window.unattempted),
        {key: each.requests for key, each in topic_state.attempts.batches.items()},
        None if rewind is None else rewind._owed.items(),
    )


@given(st.booleans(), st.booleans(), STEPS)
def test_ending_many_entries_together_equals_ending_each(
    shared: bool, rising: bool, steps: list[tuple[str, int]]
) -> None:
    order = list(range(COUNT)) if rising else [*range(COUNT // 2, COUNT), *range(COUNT // 2)]
    begin = [(step, at) for at in range(COUNT // 2) for step in ("deliver",)]
    before = module._MANY
    try:
        module._MANY = 10**9  # type: ignore[misc]
        one_by_one = play(shared, order, [*begin, *steps])
        module._MANY = 64  # type: ignore[misc]
        together = play(shared, order, [*begin, *steps])
    finally:
        module._MANY = before  # type: ignore[misc]
    assert together == one_by_one


@pytest.mark.parametrize("size", [0, 3])
@pytest.mark.parametrize("shared", [True, False])
@settings(max_examples=8)
@given(before_release=STEPS, steps=STEPS, part=st.integers(1, 1_000))
@example(before_release=[], steps=[("part", 0), ("come_again", 0), ("part", 0)], part=300)
@example(before_release=[], steps=[("ack", 0), ("ack", 79), ("reconnect", 0)], part=300)
@example(before_release=[], steps=[("come_again", COUNT // 2), ("release", 0)], part=300)
@example(before_release=[("ack", 0)], steps=[("part", 0), ("release", 0)], part=300)
@example(before_release=[("begin_forwarding", 1)], steps=[("come_again", 0)], part=300)
def test_a_release_in_parts_equals_a_release_at_once(
    shared: bool,
    size: int,
    before_release: list[tuple[str, int]],
    steps: list[tuple[str, int]],
    part: int,
) -> None:
    steps = [*before_release, ("release", 0), *steps]
    begin = [("deliver", at) for at in range(COUNT // 2)]
    order = list(range(COUNT))
    with mock.patch.object(release_module, "_RELEASED", part):
        with mock.patch.object(module, "_MANY", 10**9):
            at_once = play(shared, order, [*begin, *steps], size, look=False)
        with mock.patch.object(module, "_MANY", 64):
            in_parts = play(shared, order, [*begin, *steps], size, look=False)
    assert in_parts == at_once


def alone(state: int) -> Entry:
    entry = Entry(None, (1, 1), 1, False)
    if state == AWAY:
        return entry
    entry.queue_all()
    if state != QUEUED:
        entry.deliver(0)
    if state == NACKED:
        entry.nack(0)
    if state == FORWARDING:
        entry.begin_forwarding(0)
    return entry


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(
    ("row", "step"),
    [
        ("ack_all", lambda entry: ack_singles([entry])[0]),
        ("release_all", lambda entry: release_singles([entry])[0]),
    ],
)
def test_a_bulk_step_follows_its_row_of_the_transition_table(
    state: int, row: str, step: Callable[[Entry], list[Entry]]
) -> None:
    entry = alone(state)
    done = step(entry)
    assert entry.state[0] == TRANSITIONS[row].get(state, state)
    assert bool(entry.live) == (not done)
    entry._check()
    if row == "ack_all":
        assert done == [entry] and entry.state[0] == ACKED


def calls(work: Callable[[], object]) -> int:
    import sys

    count = 0

    def event(frame: Any, kind: str, argument: Any) -> None:
        nonlocal count
        count += kind in ("call", "c_call")

    sys.setprofile(event)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("end", ["cumulative", "release", "seek", "lose"])
@pytest.mark.parametrize("state", [QUEUED, HELD])
def test_no_bulk_step_makes_a_call_for_each_entry(end: str, state: int) -> None:
    topic_state = make_topic_state(shared=False)
    arrived = topic_state.arrive_first([(1, number) for number in range(20_000)])
    if state == HELD:
        for entry in arrived:
            entry.deliver(0)
    work: dict[str, Callable[[], object]] = {
        "cumulative": lambda: topic_state.ack_cumulative((1, 19_990), -1, 1),
        "release": topic_state.release_all,
        "seek": topic_state.reset,
        "lose": topic_state.disconnected,
    }
    assert calls(work[end]) < 2_000
    topic_state._check()


@pytest.mark.parametrize("shared", [True, False])
@settings(max_examples=30)
@given(STEPS, STEPS)
@example([("ack", 3), ("deliver", 7), ("begin_forwarding", 7)], [("come_again", 0)])
@example([("deliver", 0), ("nack", 0), ("release", 0), ("come_again", 0)], [("reconnect", 0)])
def test_batches_lost_together_equal_batches_lost_one_by_one(
    shared: bool, before: list[tuple[str, int]], after: list[tuple[str, int]]
) -> None:
    steps = [*before, ("lose", 0), ("reconnect", 0), *after]
    together = play(shared, list(range(COUNT)), steps, 3)
    with mock.patch.object(module.EntryTable, "drop_queued", lambda _: 0):
        assert play(shared, list(range(COUNT)), steps, 3) == together


def test_a_lost_connection_takes_few_calls_for_each_queued_batch() -> None:
    topic_state = make_topic_state(shared=True)
    for number in range(5_000):
        topic_state.arrive((1, number), 10, 0, range(10))
    assert calls(topic_state.disconnected) < 3 * 5_000
    assert topic_state.unacked == 0 and not topic_state.table.entries
    topic_state._check()


@pytest.mark.parametrize("state", [QUEUED, HELD])
@pytest.mark.parametrize("size", [0, 2, 10, 1_000])
def test_a_release_of_everything_completes_a_bounded_number_of_messages_in_a_step(
    size: int, state: int
) -> None:
    topic_state = make_topic_state(shared=True)
    entries = 20_000 // max(1, size)
    for number in range(entries):
        entry, _ = topic_state.arrive((1, number), size, 0, range(size or 1))
        if state == HELD and entry is not None:
            entry.deliver_all(range(entry.size))
    assert calls(topic_state.release_all) < 100
    assert topic_state.unacked == 0
    steps, left = 0, entries
    while topic_state.complete_releases():
        before, left = left, len(topic_state.table.releasing)
        assert 0 < before - left <= 500
        assert (before - left) * max(1, size) <= 10_000
        steps += 1
    assert steps >= entries // 500 - 1
    topic_state._check()


@pytest.mark.parametrize("size", [0, 10])
def test_a_count_of_messages_makes_no_call_for_each_entry(size: int) -> None:
    topic_state = make_topic_state(shared=True)
    for number in range(5_000):
        topic_state.arrive((1, number), size, 0, range(size or 1))
    assert topic_state.count(QUEUED) == 5_000 * (size or 1)
    assert topic_state.count(HELD) == 0
    assert calls(lambda: topic_state.count(QUEUED)) < 100


def test_unused_containers_are_passed_to_the_disposal() -> None:
    freed: list[Any] = []
    topic_state = TopicState(
        object(),
        0,
        "persistent://public/default/t",
        -1,
        shared=False,
        nacks=make_topic_state().nacks,
        timeouts=make_topic_state().timeouts,
        dispose=freed.append,
    )
    topic_state.arrive_first([(1, number) for number in range(5_000)])
    topic_state.ack_cumulative((1, 4_999), -1, 1)
    assert sum(len(each) for each in freed) == 5_000
    assert topic_state.unacked == 0
