"""Names of topics, and of the letter topics that are named after them."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_encore.values import letter_topic_names, topic_names

names = st.text(string.ascii_letters + string.digits + "-_.", min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("given_", "base"),
    [
        (["t"], "persistent://public/default/t"),
        (["ten/ns/t"], "persistent://ten/ns/t"),
        (["b", "a"], "persistent://public/default/a"),
        # First by the strings as given: "persistent://..." comes before "zebra".
        (["zebra", "persistent://x/y/zz"], "persistent://x/y/zz"),
        (["t-partition-3"], "persistent://public/default/t"),
        (["t-partition-x"], "persistent://public/default/t-partition-x"),
        (["non-persistent://public/default/t"], "non-persistent://public/default/t"),
    ],
)
def test_names_after_the_first_topic(given_: list[str], base: str) -> None:
    assert letter_topic_names.retry_topic_of(given_, "s") == f"{base}-s-RETRY"
    assert letter_topic_names.dead_topic_of(given_, "s") == f"{base}-s-DLQ"


@given(st.lists(names, min_size=1, max_size=5), names)
def test_names_do_not_depend_on_the_order_of_topics(given_: list[str], subscription: str) -> None:
    assert letter_topic_names.retry_topic_of(
        given_, subscription
    ) == letter_topic_names.retry_topic_of(reversed(given_), subscription)


@given(names, st.integers(0, 10_000))
def test_a_partition_is_taken_off_once(name: str, partition: int) -> None:
    assert topic_names.base_name(f"{name}-partition-{partition}") == name
