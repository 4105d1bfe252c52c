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
def test_counts_are_read_back(count: int) -> None:
    assert reconsume_times({letters.RECONSUME_TIMES: str(count)}) == count
    assert overflowed_attempts({letters.PARKED_LOOKS: str(count)}) == count


@given(st.dictionaries(texts, texts), st.one_of(texts, st.integers().map(str)))
def test_a_count_is_never_negative_and_never_raises(given_: dict[str, str], text: str) -> None:
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
def test_owner_of_a_letter(topic: str, changed: dict[str, str | None], expected: bool) -> None:
    said = {
        letters.REPLAY_ID: "r",
        letters.REAL_TOPIC: "persistent://a/b/c-partition-1",
        letters.REAL_SUBSCRIPTION: "s",
        **changed,
    }
    properties = {name: value for name, value in said.items() if value is not None}
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
def test_parked_attempts_are_of_the_parked_letter_alone(
    times: str | None, again: str | None, counted: int
) -> None:
    properties = {letters.PARKED_LOOKS: "2", letters.PARKED_TIMES: times or "0"}
    if again is not None:
        properties[letters.RECONSUME_TIMES] = again
    assert overflowed_attempts(properties) == counted


@given(st.integers(0, 999_999), st.booleans())
def test_an_attempt_is_counted_where_it_is_believed(times: int, from_retry_topic: bool) -> None:
    row = Row(attributes={letters.RECONSUME_TIMES: str(times)})
    attempt = reconsume_attempt(row, "s", from_retry_topic=from_retry_topic)
    assert attempt == (times + 1 if from_retry_topic else 1)


def test_attempts_are_counted_on_retry_topics_by_their_names() -> None:
    row = Row(topic="persistent://a/b/c-s-RETRY", attributes={letters.RECONSUME_TIMES: "2"})
    assert reconsume_attempt(row, "s") == 3
    assert reconsume_attempt(row, "other") == 1


def test_what_cannot_be_read_is_not_counted() -> None:
    with pytest.raises(UnreadableError, match="raw bytes"):
        reconsume_attempt(Row(attributes=None), "s")


@pytest.mark.parametrize(("failed", "expected"), [(0, False), (3, False), (4, True)])
def test_a_limit_is_what_is_left_after_the_first_attempt(failed: int, expected: bool) -> None:
    """Java's rule: with a limit of 3 a message is tried four times."""
    assert used_up(failed, 3) is expected
