"""The priority of a letter is that of the topic that it comes from."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_encore import UnreadableError, testing
from pulsar_encore.worker.topic_priorities import TopicPriorities

LOW, HIGH = "persistent://public/default/low", "persistent://public/default/high"
RETRIES = f"{LOW}-billing-RETRY"
PRIORITIES = TopicPriorities({LOW: -1, HIGH: 5}, "billing")


class Unreadable:
    """A message with a property of raw bytes, on the stock transport."""

    def properties(self) -> dict[str, str]:
        raise UnreadableError("a property is no text")


@pytest.mark.parametrize(
    ("origin", "priority"),
    [(f"{HIGH}-partition-3", 5), ("unknown", -1), ("", -1)],
)
def test_a_letter_has_the_priority_of_its_origin_or_of_the_topic_in_its_name(
    origin: str, priority: int
) -> None:
    letter = testing.message(b"x", properties={"REAL_TOPIC": origin} if origin else None)
    assert PRIORITIES.of_letter(letter, RETRIES) == priority


def test_a_letter_with_unreadable_properties_has_the_priority_of_the_topic_in_its_name() -> None:
    letter: Any = Unreadable()
    assert PRIORITIES.of_letter(letter, RETRIES) == -1


def test_without_priorities_a_letter_has_none() -> None:
    letter: Any = Unreadable()
    assert TopicPriorities({}, "billing").of_letter(letter, RETRIES) == 0
