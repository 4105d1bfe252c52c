"""`Breaker`: when it opens, how probes close it, and how its pause grows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pulsar_encore import Breaker, EncoreError, Reject, Retry
from pulsar_encore.worker.breaker import BreakerState

ERROR = ConnectionError("refused")


def opened(breaker: Breaker, now_ms: int = 0) -> BreakerState:
    state = BreakerState(breaker)
    for _ in range(breaker.failures):
        state.failed(ERROR, now_ms, was_probe=False)
    assert state.is_open
    return state


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"on": ()}, "Breaker.on must name at least one exception class, .* breaker=None"),
        ({"on": "ConnectionError"}, "Breaker.on must be an exception class"),
        ({"on": (ConnectionError(),)}, "Breaker.on must be an exception class"),
        ({"on": (Reject,)}, "Breaker.on must not contain Reject"),
        ({"on": (Retry,)}, "Breaker.on must not contain Retry"),
        ({"on": OSError, "failures": 0}, "Breaker.failures must be from 1"),
        ({"on": OSError, "pause": 0}, "Breaker.pause must be from 0.001"),
        ({"on": OSError, "pause": "30"}, "Breaker.pause must be a number of seconds"),
        ({"on": OSError, "within": -1}, "Breaker.within must be from 0.001"),
    ],
)
def test_a_wrong_value_is_named_with_the_allowed_values(options: Any, text: str) -> None:
    with pytest.raises(EncoreError, match=text):
        Breaker(**options)


def test_subclasses_and_groups_of_the_kinds_match() -> None:
    breaker = Breaker(on=(ConnectionError, TimeoutError))
    assert breaker.matches(ConnectionRefusedError())
    assert breaker.matches(ExceptionGroup("g", [TimeoutError(), ExceptionGroup("h", [ERROR])]))
    assert not breaker.matches(ExceptionGroup("g", [TimeoutError(), ValueError()]))
    assert not breaker.matches(OSError())


def test_it_opens_after_failures_in_a_row_however_slow() -> None:
    state = BreakerState(Breaker(on=OSError, failures=3))
    hour_ms = 3_600_000
    state.failed(ERROR, 0, was_probe=False)
    state.failed(ERROR, hour_ms, was_probe=False)
    assert not state.is_open and state.failures_in_row == 2
    state.failed(ERROR, 2 * hour_ms, was_probe=False)
    assert state.is_open
    assert state.due_ms == 2 * hour_ms + 30_000


def test_a_success_between_failures_starts_the_count_again() -> None:
    state = BreakerState(Breaker(on=OSError, failures=2))
    for _ in range(5):
        state.failed(ERROR, 0, was_probe=False)
        state.succeeded(was_probe=False)
    assert not state.is_open and state.failures_in_row == 0


def test_within_ignores_failures_that_are_too_far_apart() -> None:
    state = BreakerState(Breaker(on=OSError, failures=3, within=timedelta(seconds=10)))
    for now_ms in (0, 6_000, 12_000, 18_000):
        state.failed(ERROR, now_ms, was_probe=False)
        assert not state.is_open
    state.failed(ERROR, 22_000, was_probe=False)
    assert state.is_open


def test_a_success_of_an_earlier_call_leaves_it_open() -> None:
    state = opened(Breaker(on=OSError))
    state.succeeded(was_probe=False)
    assert state.is_open
    state.probe_started(30_000)
    state.succeeded(was_probe=True)
    assert not state.is_open


def test_failures_of_earlier_calls_do_not_prolong_the_pause() -> None:
    state = opened(Breaker(on=OSError))
    state.failed(ERROR, 20_000, was_probe=False)
    assert state.due_ms == 30_000


def test_the_pause_doubles_to_five_minutes_and_is_short_again_after_a_success() -> None:
    state = opened(Breaker(on=OSError))
    pauses = []
    for _ in range(6):
        now_ms = state.due_ms
        state.probe_started(now_ms)
        state.failed(ERROR, now_ms, was_probe=True)
        pauses.append((state.due_ms - now_ms) // 1000)
    assert pauses == [60, 120, 240, 300, 300, 300]
    state.succeeded(was_probe=True)
    for _ in range(5):
        state.failed(ERROR, 0, was_probe=False)
    assert state.due_ms == 30_000


def test_a_pause_of_more_than_five_minutes_stays() -> None:
    state = opened(Breaker(on=OSError, pause=900))
    state.failed(ERROR, 900_000, was_probe=True)
    assert state.due_ms == 1_800_000


def test_a_probe_that_hangs_allows_another_after_the_pause() -> None:
    state = opened(Breaker(on=OSError))
    state.probe_started(30_000)
    assert state.due_ms == 60_000


def test_a_probe_that_fails_for_its_own_reason_allows_another_at_once() -> None:
    state = opened(Breaker(on=OSError))
    state.probe_started(30_000)
    state.probe_said_nothing(31_000)
    assert state.is_open and state.due_ms == 31_000


def test_a_probe_that_says_nothing_does_not_end_the_pause_of_a_failed_probe() -> None:
    state = opened(Breaker(on=OSError))
    state.probe_started(30_000)
    state.probe_started(60_000)  # the first probe hangs
    state.failed(ERROR, 61_000, was_probe=True)
    state.probe_said_nothing(62_000)
    assert state.due_ms == 121_000
