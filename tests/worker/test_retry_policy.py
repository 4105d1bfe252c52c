"""`RetryPolicy`, `Retry` and `Reject`: defaults, and errors that say which values are allowed."""

from __future__ import annotations

import pickle
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from pulsar_encore import Backoff, ConfigurationError, EncoreError, Reject, Retry, RetryPolicy
from pulsar_encore.worker.retry_policy import causes_of


def test_defaults_retry_five_times_with_growing_delays() -> None:
    policy = RetryPolicy()
    assert policy.attempts == 6
    assert policy.backoff == Backoff(min_delay=1, max_delay=600, jitter=0.2)
    assert policy.letters_after_ms == 600_000
    assert policy.max_age_ms is None
    assert policy.reject_kinds == (Reject,)
    assert policy.dead_letters


def test_a_list_of_delays_is_a_backoff() -> None:
    policy = RetryPolicy(backoff=[10, timedelta(minutes=1), 600])
    delays = [policy.delays.delay_ms(count, Random(1)) for count in range(4)]
    assert delays == [10_000, 60_000, 600_000, 600_000]


def test_times_may_be_timedeltas() -> None:
    policy = RetryPolicy(letters_after=timedelta(minutes=1), max_age=timedelta(hours=1))
    assert policy.letters_after_ms == 60_000
    assert policy.max_age_ms == 3_600_000
    assert RetryPolicy(letters_after=None).letters_after_ms is None


def test_one_class_or_several_may_be_rejected() -> None:
    assert RetryPolicy(reject=ValueError).reject_kinds == (Reject, ValueError)
    assert RetryPolicy(reject=(KeyError, ValueError)).reject_kinds == (Reject, KeyError, ValueError)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"attempts": 0}, r"RetryPolicy.attempts must be from 1 to \d+ handler calls, got 0"),
        ({"attempts": 2.5}, "RetryPolicy.attempts must be an int, got float"),
        ({"attempts": True}, "RetryPolicy.attempts must be an int, got bool"),
        ({"backoff": None}, "RetryPolicy.backoff must be a Backoff or a list .* attempts=1"),
        ({"backoff": []}, "RetryPolicy.backoff must list at least one delay"),
        ({"backoff": 5}, "RetryPolicy.backoff must be a Backoff, or a list"),
        ({"letters_after": -1}, "RetryPolicy.letters_after must be from 0 to .* s, got -1"),
        ({"letters_after": "1"}, "RetryPolicy.letters_after must be a number of seconds"),
        ({"max_age": 0}, "RetryPolicy.max_age must be more than 0 s, got 0.* None for no limit"),
        ({"max_age": float("nan")}, "RetryPolicy.max_age must be from 0 to .* got nan"),
        ({"reject": "ValueError"}, "RetryPolicy.reject must be an exception class .*'ValueError'"),
        ({"reject": (ValueError("x"),)}, "RetryPolicy.reject must be an exception class"),
        ({"reject": (KeyboardInterrupt,)}, "must derive from Exception"),
        ({"reject": (Retry,)}, "must not contain Retry"),
        ({"dead_letter_topic": ""}, "RetryPolicy.dead_letter_topic must be"),
        ({"dead_letters": 1}, "RetryPolicy.dead_letters must be True or False, got 1"),
        ({"dead_letters": False, "dead_letter_topic": "d"}, "'d' has no use .* Leave one"),
    ],
)
def test_a_wrong_value_is_named_with_the_allowed_values(options: Any, text: str) -> None:
    with pytest.raises(EncoreError, match=text):
        RetryPolicy(**options)


def test_retry_keeps_its_delay_and_whether_it_counts() -> None:
    assert (Retry().delay_ms, Retry().count) == (None, True)
    retry = Retry(delay=timedelta(seconds=30), count=False)
    assert (retry.delay_ms, retry.count) == (30_000, False)
    assert str(retry) == "retry in 30 s, not counted"
    assert str(Retry()) == "retry with backoff"


@pytest.mark.parametrize("options", [{"delay": -1}, {"delay": "soon"}, {"count": None}])
def test_a_retry_with_a_wrong_value_is_a_configuration_error(options: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"Retry\.(delay|count) must be"):
        Retry(**options)


def test_a_rejection_says_why() -> None:
    assert str(Reject("negative total")) == "negative total"
    assert str(Reject(ValueError("negative total"))) == "negative total"
    assert str(Reject()) == "rejected by the handler"


def test_retry_and_reject_are_no_errors_of_the_library() -> None:
    assert not issubclass(Retry, EncoreError)
    assert not issubclass(Reject, EncoreError)


def test_retry_and_reject_survive_pickling() -> None:
    retry = pickle.loads(pickle.dumps(Retry(5, count=False)))
    assert (retry.delay_ms, retry.count) == (5_000, False)
    assert str(pickle.loads(pickle.dumps(Reject("why")))) == "why"


def test_causes_of_nested_groups_are_their_leaves_in_order() -> None:
    first, second, third = ValueError(1), KeyError(2), OSError(3)
    group = ExceptionGroup("g", [first, ExceptionGroup("h", [second]), third])
    assert list(causes_of(group)) == [first, second, third]
    assert list(causes_of(first)) == [first]
