"""The counts on letters, and the conditions under which they are trusted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from original_kit import Row

from pulsar_encore import UnreadableError, letters
from pulsar_encore.letters.attempt_limit import used_up
from pulsar_encore.letters.letter_trust import is_letter
from pulsar_encore.letters.reconsume_counts import (
    overflowed_attempts,
    reconsume_attempt,
    reconsume_times,
)

texts = st.text(max_size=40)


@given(st.integers(0, 999_999_999))
def test_counts_of_a_letter_are_read_as_they_were_written(count: int) -> None:
    assert reconsume_times({letters.RECONSUME_TIMES: str(count)}) == count
    assert overflowed_attempts({letters.PARKED_LOOKS: str(count)}) == count


@given(st.dictionaries(texts, texts), st.one_of(texts, st.integers().map(str)))
def test_reading_any_count_property_gives_a_count_of_at_least_0(
    given_: dict[str, str], text: str
) -> None:
    count = reconsume_times({**given_, letters.RECONSUME_TIMES: text})
    assert 0 <= count < 10**9
    assert overflowed_attempts(given_) == 0 or letters.PARKED_LOOKS in given_


@pytest.mark.parametrize(
    ("topic", "changed", "expected"),
    [
        ("persistent://a/b/c", {}, True),
        ("persistent://a/b/c-partition-2", {}, True),
        ("persistent://a/b/other", {}, False),  # copied along by a pipeline
        ("persistent://a/b/c", {letters.REAL_SUBSCRIPTION: "other"}, False),
        ("persistent://a/b/c", {letters.REPLAY_ID: None}, False),
        ("persistent://a/b/c", {letters.REAL_TOPIC: None}, False),
        ("persistent://a/b/c-s-RETRY", {letters.REPLAY_ID: None}, True),
        ("persistent://a/b/c-s-RETRY-partition-1", {letters.REPLAY_ID: None}, True),
        ("persistent://a/b/c-other-RETRY", {letters.REPLAY_ID: None}, False),
    ],
)
def test_a_letter_belongs_to_the_topic_and_subscription_in_its_properties(
    topic: str, changed: dict[str, str | None], expected: bool
) -> None:
    given = {
        letters.REPLAY_ID: "r",
        letters.REAL_TOPIC: "persistent://a/b/c-partition-1",
        letters.REAL_SUBSCRIPTION: "s",
        **changed,
    }
    properties = {name: value for name, value in given.items() if value is not None}
    assert is_letter(properties, topic, "s") is expected


@pytest.mark.parametrize(
    ("times", "again", "counted"),
    [
        (None, None, 2),
        (None, "1", 0),  # a Java consumer reconsumed it, and copied properties of another letter
        ("1", "1", 2),
        ("1", "2", 0),
    ],
)
def test_attempts_before_parking_count_only_while_the_reconsume_count_is_unchanged(
    times: str | None, again: str | None, counted: int
) -> None:
    properties = {letters.PARKED_LOOKS: "2", letters.PARKED_TIMES: times or "0"}
    if again is not None:
        properties[letters.RECONSUME_TIMES] = again
    assert overflowed_attempts(properties) == counted


@given(st.integers(0, 999_999), st.booleans())
def test_the_reconsume_count_is_used_only_for_messages_of_a_retry_topic(
    times: int, from_retry_topic: bool
) -> None:
    row = Row(attributes={letters.RECONSUME_TIMES: str(times)})
    attempt = reconsume_attempt(row, "s", from_retry_topic=from_retry_topic)
    assert attempt == (times + 1 if from_retry_topic else 1)


def test_a_retry_topic_of_the_subscription_is_recognized_by_its_name() -> None:
    row = Row(topic="persistent://a/b/c-s-RETRY", attributes={letters.RECONSUME_TIMES: "2"})
    assert reconsume_attempt(row, "s") == 3
    assert reconsume_attempt(row, "other") == 1


def test_counting_attempts_of_unreadable_properties_raises() -> None:
    with pytest.raises(UnreadableError, match="raw bytes"):
        reconsume_attempt(Row(attributes=None), "s")


@pytest.mark.parametrize(("failed", "expected"), [(0, False), (3, False), (4, True)])
def test_a_limit_of_3_allows_four_attempts(failed: int, expected: bool) -> None:
    """Java's rule: with a limit of 3 a message is tried four times."""
    assert used_up(failed, 3) is expected
