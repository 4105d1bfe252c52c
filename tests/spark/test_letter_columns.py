"""Columns of a letter: no property of a letter can end a read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_encore.letters import DELAY_TIME, FIRST_TIME, LAST_TIME, REAL_SUBSCRIPTION, REAL_TOPIC
from pulsar_encore.letters.letter_reader import LetterFacts
from pulsar_encore.spark.reader.letter_columns import letter_values
from pulsar_encore.spark.source_columns import LAST_US
from pulsar_encore.values.message_id import MessageId

TOPIC = "persistent://public/default/orders-billing-DLQ"


class Given:
    """A message with these properties."""

    def __init__(self, properties: dict[str, str], written_ms: int = 5) -> None:
        self._properties, self._written_ms = properties, written_ms

    def properties(self) -> dict[str, str]:
        return self._properties

    def message_id(self) -> MessageId:
        return MessageId(-1, 3, 4)

    def publish_timestamp(self) -> int:
        return self._written_ms


def values(properties: dict[str, str], written_ms: int = 5) -> dict[str, object]:
    return letter_values(LetterFacts(Given(properties, written_ms)), TOPIC)


def test_a_letter_is_due_one_delay_after_its_publish_time() -> None:
    found = values({DELAY_TIME: "1000", FIRST_TIME: "7", REAL_TOPIC: "orders"}, 500)
    assert (found["delayTime"], found["dueTime"], found["firstTime"]) == (1000, 1_500_000, 7000)
    assert found["realSubscription"] == "billing"


def test_a_blank_subscription_property_does_not_fall_back_to_the_topic_name() -> None:
    # A replay refuses such a letter. Routed by the topic name, it ended each run of a triage.
    found = values({REAL_TOPIC: "orders", REAL_SUBSCRIPTION: ""})
    assert found["realSubscription"] == ""


@pytest.mark.parametrize("written_ms", [LAST_US // 1000, 1 << 62, (1 << 63) - 1, (1 << 64) - 1])
def test_a_time_outside_of_sparks_range_is_null(written_ms: int) -> None:
    late = str(LAST_US // 1000 + 1)
    found = values({DELAY_TIME: "1000", FIRST_TIME: late, LAST_TIME: "0"}, written_ms)
    assert (found["dueTime"], found["firstTime"], found["lastTime"]) == (None, None, 0)


@given(
    st.dictionaries(
        st.sampled_from([DELAY_TIME, FIRST_TIME, LAST_TIME]), st.integers(0).map(str) | st.text()
    ),
    st.integers(0, (1 << 64) - 1),
)
def test_times_are_spark_times_or_null(properties: dict[str, str], written_ms: int) -> None:
    found = values(properties, written_ms)
    for key in ("dueTime", "firstTime", "lastTime"):
        assert found[key] is None or 0 <= int(str(found[key])) <= LAST_US
