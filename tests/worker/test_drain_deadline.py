"""The budget of a drain, and its parts."""

from __future__ import annotations

import math

import pytest

from pulsar_encore.worker.drain_deadline import DrainDeadline


class Clock:
    def __init__(self) -> None:
        self.now: float = 100.0

    def __call__(self) -> float:
        return self.now


def test_time_is_not_limited_before_the_drain() -> None:
    deadline = DrainDeadline(20, Clock())
    assert not deadline.has_begun
    assert deadline.handlers_left_s() == deadline.flush_left_s() == deadline.left_s() == math.inf


def test_handlers_get_the_budget_minus_three_seconds_and_the_close_the_last_one() -> None:
    clock = Clock()
    deadline = DrainDeadline(20, clock)
    deadline.begin()
    assert (deadline.handlers_left_s(), deadline.flush_left_s(), deadline.left_s()) == (17, 19, 20)
    clock.now += 18
    assert (deadline.handlers_left_s(), deadline.flush_left_s(), deadline.left_s()) == (0, 1, 2)
    clock.now += 60
    assert (deadline.handlers_left_s(), deadline.flush_left_s(), deadline.left_s()) == (0, 0, 0)


@pytest.mark.parametrize("budget_s", [0.3, 1.5, 3.0])
def test_a_short_budget_leaves_handlers_no_time(budget_s: float) -> None:
    deadline = DrainDeadline(budget_s, Clock())
    deadline.begin()
    assert deadline.handlers_left_s() == 0
    assert deadline.flush_left_s() == pytest.approx(budget_s * 2 / 3)
    assert deadline.left_s() == pytest.approx(budget_s)


def test_the_first_begin_counts_and_may_lie_in_the_past() -> None:
    clock = Clock()
    ends: list[float] = []
    deadline = DrainDeadline(20, clock, ends.append)
    deadline.begin(at=95)
    deadline.begin()
    deadline.begin(at=50)
    assert deadline.has_begun
    assert deadline.left_s() == 15
    assert ends == [115]


def test_the_text_of_a_deadline_says_how_much_time_is_left() -> None:
    deadline = DrainDeadline(20, Clock())
    assert repr(deadline) == "<DrainDeadline of 20 s, not begun>"
    deadline.begin(at=97)
    assert repr(deadline) == "<DrainDeadline of 20 s, 17 s left>"
