"""When the stock engine believes that a connection is back."""

from __future__ import annotations

from pulsar_encore.transport.stock.pump import Steadiness


def looks(*seen: tuple[float, bool]) -> list[bool]:
    steadiness = Steadiness()
    return [steadiness.counts(connected, at) for at, connected in seen]


def test_the_first_connection_counts_at_once() -> None:
    assert looks((0.0, True), (0.01, True)) == [True, True]


def test_a_lost_one_is_told_at_the_first_look() -> None:
    assert looks((0.0, True), (0.01, False)) == [True, False]


def test_one_that_is_back_has_to_stay() -> None:
    seen = looks((0.0, False), (0.01, True), (0.02, True), (0.061, True))
    assert seen == [False, False, False, True]


def test_it_is_counted_from_the_look_that_saw_it_not_from_the_last_that_did_not() -> None:
    """On a busy machine looks are far apart: a connection that came a moment ago must not count."""
    assert looks((0.0, False), (5.0, True), (5.06, True)) == [False, False, True]


def test_one_that_flaps_begins_anew() -> None:
    seen = looks((0.0, False), (0.01, True), (0.04, False), (0.05, True), (0.07, True))
    assert seen == [False] * 5
