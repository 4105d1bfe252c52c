"""Tables of delays by attempt, wherever a backoff is accepted."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import Any

import pytest

from pulsar_encore import Backoff, BackoffTable, ConfigurationError, ConsumerType
from pulsar_encore.options import ConsumerOptions
from pulsar_encore.spark.sink.delays import retry_delays
from pulsar_encore.values.backoff import backoff_of

RNG = Random(1)
BAD = [
    ([], "at least one"),
    ((), "at least one"),
    ([-1], r"\[0\]"),
    ([1, -0.5], r"\[1\]"),
    ([float("nan")], r"\[0\]"),
    ([1, 2, float("inf")], r"\[2\]"),
    ([True], r"\[0\].*bool"),
    (["10"], r"\[0\].*str"),
    ([None], r"\[0\].*NoneType"),
    ([[10]], r"\[0\].*list"),
    ([timedelta(seconds=-1)], r"\[0\]"),
    ([1e300], r"\[0\].*100 years"),
    ("10,60", "list.*got str"),
    (b"10", "list.*got bytes"),
    (10, "list.*got int"),
    (True, "list.*got bool"),
    ({10: 1}, "list.*got dict"),
    ({10, 60}, "list.*got set"),
    (iter([10]), "list"),
    (range(3), "list.*got range"),
]
OPTIONS = ["negative_ack_redelivery_backoff", "ack_timeout_redelivery_backoff"]


def options(**given: Any) -> ConsumerOptions:
    return ConsumerOptions(
        topics=("t",),
        pattern=None,
        subscription_name="s",
        consumer_type=ConsumerType.Shared,
        unacked_messages_timeout_ms=10_000,
        **given,
    )


@pytest.mark.parametrize(
    "table", [[10, 60, 600], (10, 60.0, timedelta(minutes=10)), BackoffTable([10, 60, 600])]
)
def test_the_last_delay_repeats(table: Any) -> None:
    backoff = backoff_of(table, "backoff")
    assert backoff is not None
    delays = [backoff.delay_ms(count, RNG) for count in (-1, 0, 1, 2, 3, 2**40)]
    assert delays == [10_000, 10_000, 60_000, 600_000, 600_000, 600_000]


def test_a_table_may_be_short_fall_and_contain_0() -> None:
    backoff = BackoffTable([0.0005, 0, 5, timedelta(milliseconds=1)])
    assert [backoff.delay_ms(count, RNG) for count in range(5)] == [0, 0, 5_000, 1, 1]


def test_a_table_is_a_value_that_does_not_follow_its_list() -> None:
    delays = [1, 2]
    table = BackoffTable(delays)
    delays.clear()
    assert table == BackoffTable((1, 2)) and hash(table) == hash(BackoffTable((1, 2)))


@pytest.mark.parametrize("name", OPTIONS)
def test_options_take_a_table_a_backoff_or_nothing(name: str) -> None:
    assert getattr(options(**{name: [10, 60]}), name) == BackoffTable([10, 60])
    assert getattr(options(**{name: Backoff()}), name) == Backoff()
    assert getattr(options(**{name: None}), name) is None


@pytest.mark.parametrize(("table", "word"), BAD)
@pytest.mark.parametrize("name", OPTIONS)
def test_a_bad_table_is_refused_with_the_name_of_its_option(
    name: str, table: Any, word: str
) -> None:
    with pytest.raises(ConfigurationError, match=rf"(?s)^{name}.*{word}|{name}{word}"):
        options(**{name: table})


@pytest.mark.parametrize(("table", "word"), BAD)
def test_a_bad_table_of_its_own_is_refused(table: Any, word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        BackoffTable(table)


def test_a_backoff_is_no_longer_than_100_years() -> None:
    with pytest.raises(ConfigurationError, match="100 years"):
        Backoff(max_delay=1e30)


@pytest.mark.parametrize(
    "text", ["10,60,600", "[10, 60, 600]", "(10, 60, 600)", "[10.0, 60, 600,]", " [10,60,600] "]
)
def test_spark_takes_the_text_of_a_python_list(text: str) -> None:
    assert retry_delays(text, "backoff").listed_ms == (10_000, 60_000, 600_000)


@pytest.mark.parametrize("text", ["[]", "()", "[-1]", "[10", "10]", "[nan]", "['10']", "[[10]]"])
def test_spark_refuses_other_texts(text: str) -> None:
    with pytest.raises(ConfigurationError, match="backoff"):
        retry_delays(text, "backoff")


@pytest.mark.parametrize("table", [[10**400], [1, -(10**400)]])
def test_a_delay_that_no_float_can_hold_is_refused(table: list[int]) -> None:
    with pytest.raises(ConfigurationError, match=r"delays\[\d\] is too large"):
        BackoffTable(table)


@pytest.mark.parametrize("low_s", [0.001, 0.1, 10])
@pytest.mark.parametrize("multiplier", [1.0001, 2, 1e15, 1e308, 10**400])
def test_no_multiplier_overflows(low_s: float, multiplier: float) -> None:
    backoff = Backoff(min_delay=low_s, max_delay=3_000_000_000, multiplier=multiplier)
    delays = [backoff.delay_ms(count, Random(1)) for count in [0, 1, 2, 3, 10, 10**6]]
    assert delays == sorted(delays)
    assert delays[-1] == 3_000_000_000_000
