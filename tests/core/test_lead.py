"""Keys that are asked for ahead of time: tracked until they are due, whatever comes in between."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_encore.core.due_index import MessageKey
from pulsar_encore.core.lead import LeadIndex

LEAD = 100
KEY = (1, 2, 3)


def test_a_key_asked_for_waits_until_it_is_due() -> None:
    index = LeadIndex()
    index.add(KEY, 1000, 6)
    edge = 1024
    assert index.next_ask(LEAD) == edge - LEAD
    assert not index.ask(edge - LEAD - 1, LEAD)
    assert list(index.ask(edge - LEAD, LEAD)) == [KEY]
    assert not index.ask(edge, LEAD)
    for now in (edge - LEAD, edge - 1):
        assert not index.pop_due(now)
        assert KEY in index and len(index) == 1
    assert index.next_due() == edge
    assert list(index.pop_due(edge)) == [KEY]
    assert KEY not in index and not len(index)
    assert index.next_due() is None and index.next_ask(LEAD) is None


def test_a_late_ask_keeps_its_keys_for_a_whole_lead() -> None:
    """The command takes its time from when it is handed over, however late that was."""
    index = LeadIndex()
    index.add(KEY, 1000, 0)
    assert list(index.ask(2000, LEAD)) == [KEY]
    assert not index.pop_due(2099)
    assert list(index.pop_due(2100)) == [KEY]


def test_a_delay_shorter_than_the_lead_is_asked_for_at_once() -> None:
    index = LeadIndex()
    index.add(KEY, 20, 0)
    assert index.next_ask(LEAD) == 0
    assert list(index.ask(10, LEAD)) == [KEY]


@pytest.mark.parametrize("asked", [False, True])
def test_nacked_again_it_waits_for_its_new_time(asked: bool) -> None:
    index = LeadIndex()
    index.add(KEY, 1000, 0)
    if asked:
        index.ask(900, LEAD)
    assert index.move(KEY, 5000, 0)
    assert not index.pop_due(4999)
    assert len(index) == 1
    assert list(index.ask(4900, LEAD)) == [KEY]


@pytest.mark.parametrize("asked", [False, True])
def test_what_was_settled_does_not_come_due(asked: bool) -> None:
    index = LeadIndex()
    for entry in range(5):
        index.add((1, entry, 0), 1000, 0)
    if asked:
        index.ask(900, LEAD)
    assert not index.add((1, 4, 0), 2000, 0)
    assert index.discard((1, 4, 0)) and not index.discard((1, 4, 0))
    assert index.discard_entry(1, 3) == 1
    assert index.discard_through(1, 1) == 2
    index.ask(900, LEAD)
    assert list(index.pop_due(1000)) == [(1, 2, 0)]
    index.add(KEY, 1000, 0)
    index.clear()
    assert not index.ask(5000, LEAD) and not len(index)


keys = st.tuples(st.just(1), st.integers(0, 3), st.integers(-1, 2))
steps = st.lists(
    st.tuples(st.sampled_from(["add", "move", "discard"]), keys, st.integers(0, 300))
    | st.tuples(st.just("pass"), st.just(KEY), st.integers(0, 120)),
    max_size=40,
)


@given(steps)
def test_nothing_is_shown_before_its_time_nor_forgotten(
    script: list[tuple[str, MessageKey, int]],
) -> None:
    index = LeadIndex()
    model: dict[MessageKey, int] = {}
    now = 0
    for what, key, number in [*script, ("pass", KEY, 1000), ("pass", KEY, 1000)]:
        if what == "add":
            assert index.add(key, now + number, 3) is (key not in model)
            model.setdefault(key, now + number)
        elif what == "move":
            assert index.move(key, now + number, 3) is (key in model)
            model[key] = now + number
        elif what == "discard":
            assert index.discard(key) is (key in model)
            model.pop(key, None)
        else:
            now += number
            for each in index.pop_due(now):
                assert model.pop(each) <= now
            index.ask(now, LEAD)
        index._check()
        assert len(index) == len(model)
        assert all(each in index for each in model)
    assert not model
