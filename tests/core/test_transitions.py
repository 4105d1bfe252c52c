"""The table of states against the code: each step of `Entry` from each state, no other writer."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from core_kit import make_topic_state

import pulsar_encore
from pulsar_encore.consumer.delivery.receive_queue import ReceiveQueue
from pulsar_encore.core import entry as module
from pulsar_encore.core.entry import Entry
from pulsar_encore.core.message_states import (
    ACK_PENDING,
    ACKED,
    AWAY,
    FORWARDING,
    HELD,
    NACKED,
    QUEUED,
    TRANSITIONS,
)

STATES = (AWAY, QUEUED, HELD, NACKED, ACKED, FORWARDING, ACK_PENDING)
SIZE = 3  # the message in the middle makes the step; of bulk steps all do

# How each step is made, of the message at index 1.
STEPS: dict[str, Callable[[Entry], object]] = {
    "queue": lambda entry: entry.queue(1),
    "queue_all": lambda entry: entry.queue_all(),
    "wait_on": lambda entry: entry.wait_on(1),
    "learn_acked": lambda entry: entry.learn_acked(0),
    "learn_unacked": lambda entry: entry.learn_unacked((1,)),
    "deliver": lambda entry: entry.deliver(1),
    "deliver_all": lambda entry: entry.deliver_all(range(1, 2)),
    "nack": lambda entry: entry.nack(1),
    "begin_forwarding": lambda entry: entry.begin_forwarding(1),
    "forward_failed": lambda entry: entry.forward_failed(1),
    "fail_in_place": lambda entry: entry.fail_in_place(1),
    "begin_pending_ack": lambda entry: entry.begin_pending_ack(1),
    "give_up_pending_ack": lambda entry: entry.give_up_pending_ack(0b010),
    "hold_again": lambda entry: entry.hold_again(0b010),
    "requeue": lambda entry: entry.requeue(1),
    "ack": lambda entry: entry.ack(1),
    "ack_held": lambda entry: entry.ack_held([1]),
    "ack_all": lambda entry: entry.ack_all(),
    "release": lambda entry: entry.release(0b010),
    "release_all": lambda entry: entry.release_all(),
    "drop_queued": lambda entry: entry.drop_queued(),
    "readopt": lambda entry: entry.readopt(),
}
# Steps that their caller makes from the states of their row only; the others heed their state.
CALLER_HEEDS = {"queue", "queue_all", "wait_on"}
ALL = {"queue_all", "learn_acked", "ack_all", "release_all", "drop_queued", "readopt"}


def entry_in(state: int) -> Entry:
    """Return an entry with all messages in one state, reached by steps of the table."""
    entry = Entry(None, (1, 1), SIZE, True)
    if state == AWAY:
        return entry
    if state == ACKED:
        entry.ack_all()
        return entry
    entry.queue_all()
    for index in range(SIZE):
        if state != QUEUED:
            assert entry.deliver(index)
        if state == NACKED:
            assert entry.nack(index)
        if state == FORWARDING:
            assert entry.begin_forwarding(index)
        if state == ACK_PENDING:
            assert entry.begin_pending_ack(index)
    entry._check()
    return entry


def test_every_row_is_a_step_and_every_step_is_tested() -> None:
    assert set(STEPS) == set(TRANSITIONS)
    assert all(hasattr(Entry, step) for step in TRANSITIONS)


@pytest.mark.parametrize("step", TRANSITIONS)
@pytest.mark.parametrize("before", STATES)
def test_a_step_changes_a_state_as_its_row_says(step: str, before: int) -> None:
    row = TRANSITIONS[step]
    if step in CALLER_HEEDS and before not in row:
        return
    entry = entry_in(before)
    STEPS[step](entry)
    after = row.get(before, before)
    others = after if step in ALL else before
    assert list(entry.state) == [others, after, others]
    entry._check()


@pytest.mark.parametrize(
    "step",
    ["deliver", "deliver_all", "nack", "begin_forwarding", "forward_failed", "begin_pending_ack"],
)
@pytest.mark.parametrize("before", STATES)
def test_a_step_returns_whether_it_was_made(step: str, before: int) -> None:
    assert STEPS[step](entry_in(before)) is (before in TRANSITIONS[step])


@pytest.mark.parametrize("step", ["deliver", "deliver_all", "begin_forwarding", "forward_failed"])
def test_a_record_out_of_use_makes_no_step(step: str) -> None:
    for before in TRANSITIONS[step]:
        entry = entry_in(before)
        entry.live = False
        assert STEPS[step](entry) is False
        assert entry.state[1] == before


def writes_of_state(path: Path) -> list[int]:
    """Lines that assign to an attribute or name `state`, or into one, of an entry."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        targets: list[Any] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            targets = [node.target]
        for target in targets:
            into = target.value if isinstance(target, ast.Subscript) else target
            is_attribute = isinstance(into, ast.Attribute) and into.attr == "state"
            is_local = isinstance(target, ast.Subscript) and ast.unparse(into) == "state"
            if is_attribute or is_local:
                found.append(node.lineno)
    return found


def test_no_other_code_writes_a_state() -> None:
    root = Path(pulsar_encore.__file__).parent
    writers = {
        str(path.relative_to(root)): len(lines)
        for folder in ("core", "consumer")
        for path in (root / folder).rglob("*.py")
        if (lines := writes_of_state(path))
    }
    assert writers == {
        "core/entry.py": len(writes_of_state(Path(module.__file__))),
        # Made for each message, where a call would cost more than the step.
        "core/topic_state.py": 1,
        "consumer/delivery/receive_queue.py": 3,
    }
    assert writers["core/entry.py"] >= 10, "the search finds them"


@pytest.mark.parametrize("before", STATES)
def test_an_ack_of_the_topic_state_follows_the_transition_table(before: int) -> None:
    topic_state = make_topic_state()
    entry = entry_in(before)
    entry.topic_state = topic_state
    topic_state.ack(entry, 1)
    assert entry.state[1] == TRANSITIONS["ack"].get(before, before)
    entry._check()


@pytest.mark.parametrize("before", [HELD, FORWARDING])
def test_an_ack_of_a_whole_entry_leaves_nothing_of_it(before: int) -> None:
    topic_state = make_topic_state()
    (entry,) = topic_state.arrive_first([(1, 1)])
    assert entry.deliver(0)
    if before == FORWARDING:
        assert topic_state.begin_forwarding(entry, 0)
    assert topic_state.unacked == 1
    assert topic_state.ack(entry, 0) == 1
    assert (topic_state.unacked, topic_state.find((1, 1)), entry.live) == (0, None, False)
    assert topic_state.acks.covers((1, 1))
    topic_state._check()


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("before", STATES)
def test_taking_a_message_from_the_receive_queue_follows_the_transition_table(
    before: int, live: bool
) -> None:
    entry = entry_in(before)
    entry.topic_state, entry.live = make_topic_state(), live
    queue = ReceiveQueue(None, lambda *_: None, ANY, lambda _: None)
    raw: Any = b"1"
    queue.push(entry, (1,), (raw,))
    message = queue.take()
    legal = live and before in TRANSITIONS["deliver"]
    assert (message is not None) is legal
    assert entry.state[1] == (TRANSITIONS["deliver"][before] if legal else before)
