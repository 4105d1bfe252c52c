"""Rejections in a row: the limit, trials, and the end by a success."""

from __future__ import annotations

from pulsar_encore.worker.reject_streak import RejectStreak

ERROR = ValueError("no such field")


def test_the_message_that_reaches_the_limit_and_later_ones_are_kept() -> None:
    streak = RejectStreak(3)
    assert [streak.rejected(ERROR, 1_000) for _ in range(5)] == [False, False, True, True, True]
    assert streak.due_ms == 31_000


def test_a_trial_starts_every_30_seconds() -> None:
    streak = RejectStreak(1)
    streak.rejected(ERROR, 0)
    streak.trial_started(35_000)
    streak.rejected(ERROR, 36_000)
    assert streak.due_ms == 65_000


def test_a_success_ends_the_streak() -> None:
    streak = RejectStreak(2)
    streak.rejected(ERROR, 0)
    streak.succeeded()
    assert not streak.rejected(ERROR, 0)
    assert streak.rejected(ERROR, 0)
    streak.succeeded()
    assert not streak.is_reached and streak.in_row == 0 and streak.error is None


def test_without_a_limit_nothing_is_kept() -> None:
    streak = RejectStreak(None)
    assert not any(streak.rejected(ERROR, 0) for _ in range(1_000))
