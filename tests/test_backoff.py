"""Backoff: Java's values, jitter, invalid options, and failure reports."""

from __future__ import annotations

import math
from datetime import timedelta
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_encore import Backoff, ConfigurationError
from pulsar_encore.values.backoff import FailureReports, to_ms

RNG = Random(1)


@pytest.mark.parametrize(
    ("low", "high", "multiplier", "expected"),
    [
        # Measured on Java's client: `docs/notes/consumer-semantics.md#redelivery-backoff`.
        (1, 600, 2, {-1: 1_000, 0: 1_000, 1: 2_000, 4: 16_000, 100: 600_000}),
        (2, 6_000, 5, {1: 10_000, 2: 50_000, 4: 1_250_000, 100: 6_000_000}),
        (0, 600, 2, {0: 0, 1: 0, 50: 0}),
        (5, 5, 2, {0: 5_000, 1: 5_000, 9: 5_000}),
    ],
)
def test_delays_equal_javas(
    low: float, high: float, multiplier: float, expected: dict[int, int]
) -> None:
    backoff = Backoff(min_delay=low, max_delay=high, multiplier=multiplier)
    assert {count: backoff.delay_ms(count, RNG) for count in expected} == expected


def test_defaults_are_javas() -> None:
    backoff = Backoff()
    assert [backoff.delay_ms(count, RNG) for count in (0, 1, 5, 6)] == [
        10_000,
        20_000,
        320_000,
        600_000,
    ]


delays = st.integers(0, 10**7)


@given(delays, delays, st.floats(1.001, 1e6), st.integers(-5, 2**31), st.floats(0, 1))
def test_delays_stay_within_bounds(
    one: int, other: int, multiplier: float, count: int, jitter: float
) -> None:
    low, high = sorted((one, other))
    backoff = Backoff(
        min_delay=low / 1000, max_delay=high / 1000, multiplier=multiplier, jitter=jitter
    )
    plain = Backoff(min_delay=low / 1000, max_delay=high / 1000, multiplier=multiplier)
    delay, full = backoff.delay_ms(count, Random(count)), plain.delay_ms(count, RNG)
    assert low <= delay <= full <= high
    assert delay >= full - math.ceil(full * jitter)


@given(st.integers(1, 10**5), st.floats(1.01, 50), st.integers(0, 200))
def test_the_delay_never_shrinks_as_the_count_grows(
    low: int, multiplier: float, count: int
) -> None:
    backoff = Backoff(min_delay=low / 1000, max_delay=10**5, multiplier=multiplier)
    assert backoff.delay_ms(count, RNG) <= backoff.delay_ms(count + 1, RNG)


def test_jitter_uses_the_given_random_source() -> None:
    backoff = Backoff(min_delay=1, max_delay=100, jitter=0.5)
    same = [[backoff.delay_ms(4, rng) for _ in range(20)] for rng in (Random(7), Random(7))]
    assert same[0] == same[1]
    assert len(set(same[0])) > 10


def test_timedeltas() -> None:
    backoff = Backoff(min_delay=timedelta(milliseconds=1500), max_delay=timedelta(hours=1))
    assert backoff.delay_ms(0, RNG) == 1500
    assert backoff.delay_ms(99, RNG) == 3_600_000


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"min_delay": -1}, "min_delay"),
        ({"min_delay": math.nan}, "min_delay"),
        ({"max_delay": math.inf}, "max_delay"),
        ({"min_delay": "1"}, "min_delay"),
        ({"min_delay": True}, "min_delay"),
        ({"min_delay": 2, "max_delay": 1}, "max_delay"),
        ({"multiplier": 1}, "multiplier"),
        ({"multiplier": 0.5}, "multiplier"),
        ({"multiplier": math.nan}, "multiplier"),
        ({"multiplier": math.inf}, "multiplier"),
        ({"multiplier": "2"}, "multiplier"),
        ({"jitter": -0.1}, "jitter"),
        ({"jitter": 1.1}, "jitter"),
        ({"jitter": math.nan}, "jitter"),
        ({"jitter": None}, "jitter"),
    ],
)
def test_wrong_options_are_errors_that_name_them(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        Backoff(**options)


@pytest.mark.parametrize(
    ("value", "ms"), [(0, 0), (0.0014, 1), (2, 2000), (timedelta(days=1), 86_400_000)]
)
def test_to_ms(value: float | timedelta, ms: int) -> None:
    assert to_ms(value, "delay") == ms


def test_reports_of_a_lasting_failure_become_rare() -> None:
    reports = FailureReports()
    report_times = [second for second in range(100, 3700, 10) if reports.failed(second)]
    gaps = [later - first for first, later in pairwise(report_times)]
    assert report_times[0] == 100, "the first failure is reported"
    assert reports.attempts == 360
    assert reports.elapsed_s(3700) == 3600
    assert gaps == [10, 10, 20, 40, 80, 160, *[300] * (len(gaps) - 6)]


def test_elapsed_time_counts_from_the_first_failure() -> None:
    reports = FailureReports(since_s=5.0)
    assert reports.failed(8.0)
    assert reports.elapsed_s(9.0) == 4.0
    assert not reports.failed(10.0)
    assert reports.failed(11.0)
