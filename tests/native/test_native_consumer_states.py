"""States of one topic's consumer: an illegal step raises, and the table is complete."""

from __future__ import annotations

import pytest

from pulsar_encore.transport.native.consumer.consumer_states import (
    HELD,
    TRANSITIONS,
    IllegalTransitionError,
    State,
    StateMachine,
    Step,
)

LEGAL = [
    (before, step, after) for step, row in TRANSITIONS.items() for before, after in row.items()
]
ILLEGAL = [
    (before, step) for step, row in TRANSITIONS.items() for before in State if before not in row
]


SEEK_ENDS = [
    (step, state)
    for step in (Step.SEEK_DONE, Step.SEEK_FAILED)
    for state in (State.CLOSED_BY_SEEK, State.LOST_IN_SEEK)
]


def machine_in(state: State) -> StateMachine:
    machine = StateMachine()
    machine.state = state
    return machine


def reachable(first: State) -> set[State]:
    found, new = {first}, [first]
    while new:
        state = new.pop()
        for row in TRANSITIONS.values():
            after = row.get(state)
            if after is not None and after not in found:
                found.add(after)
                new.append(after)
    return found


@pytest.mark.parametrize(("before", "step", "after"), LEGAL)
def test_a_legal_step_leads_to_the_state_in_the_table(
    before: State, step: Step, after: State
) -> None:
    machine = machine_in(before)
    assert machine.step(step) is before
    assert machine.state is after


@pytest.mark.parametrize(("before", "step"), ILLEGAL)
def test_an_illegal_step_raises_and_changes_nothing(before: State, step: Step) -> None:
    machine = machine_in(before)
    with pytest.raises(IllegalTransitionError, match=step.value):
        machine.step(step)
    assert machine.state is before


def test_every_step_has_a_row_and_every_state_can_be_reached() -> None:
    assert set(TRANSITIONS) == set(Step)
    assert reachable(State.DETACHED) == set(State)


def test_a_new_consumer_is_detached() -> None:
    assert StateMachine().state is State.DETACHED


def test_no_step_leaves_the_end_state() -> None:
    assert reachable(State.ENDED) == {State.ENDED}


@pytest.mark.parametrize("state", [state for state in State if state is not State.ENDED])
def test_every_state_leads_to_the_end(state: State) -> None:
    machine = machine_in(state)
    machine.step(Step.END)
    machine.step(Step.FINISH)
    assert machine.state is State.ENDED


@pytest.mark.parametrize(
    "step", [Step.LOSE, Step.CLOSED_BY_BROKER, Step.REATTACH, Step.END], ids=lambda step: step.name
)
def test_events_from_outside_are_legal_in_every_state(step: Step) -> None:
    """A session reports a loss whenever it ends. It does not know the state and must not raise."""
    assert set(TRANSITIONS[step]) == set(State)


@pytest.mark.parametrize("step", [Step.LOSE, Step.CLOSED_BY_BROKER], ids=lambda step: step.name)
@pytest.mark.parametrize("state", sorted(HELD, key=lambda state: state.name))
def test_no_broker_holds_the_consumer_after_a_loss(state: State, step: Step) -> None:
    assert TRANSITIONS[step][state] not in HELD


@pytest.mark.parametrize(("step", "state"), SEEK_ENDS)
def test_only_the_end_of_a_seek_reattaches_a_consumer_that_the_seek_closed(
    step: Step, state: State
) -> None:
    assert state not in TRANSITIONS[Step.BEGIN_ATTACH]
    assert TRANSITIONS[step][state] is State.DETACHED
