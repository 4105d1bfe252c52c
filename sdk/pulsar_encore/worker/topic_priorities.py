"""The priorities of a worker's topics, and of the letters that come from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..errors import UnreadableError
from ..letters.property_names import REAL_TOPIC
from ..message import Message
from ..values.topic_names import base_name

_LETTER_SUFFIXES: Final = ("-RETRY", "-DLQ")


class TopicPriorities:
    """The priority of each topic: a higher number starts first.

    Attributes:
        differ: True if there are several priorities.
        known: (priority, True if its messages may be letters) of each topic or partition that was
            seen. Read for each message; `learn` fills it.

    Args:
        given: Priorities by topic; empty if the worker has none.
    """

    def __init__(self, given: Mapping[str, int], subscription: str) -> None:
        self.differ: bool = len(set(given.values())) > 1
        self.known: dict[str, tuple[int, bool]] = {}
        self._given = given
        self._highest = max(given.values(), default=0)
        self._retry_suffix = f"-{subscription}-RETRY"

    def learn(self, topic: str) -> tuple[int, bool]:
        base = base_name(topic)
        priority = self._given.get(topic, self._given.get(base, 0))
        # `Message.attempt` reads the properties, and only letters have attempts there.
        self.known[topic] = priority, base.endswith(_LETTER_SUFFIXES)
        return self.known[topic]

    def rank(self, topic: str) -> int:
        """Return the priority of a topic. That of its letters is known when they are taken."""
        priority, may_be_letters = self.known.get(topic) or self.learn(topic)
        return self._highest if may_be_letters else priority

    def of_letter(self, message: Message, topic: str) -> int:
        """Return the priority of the topic that a letter comes from.

        All topics of a consumer share one retry letter topic, which is named after one of them.
        """
        if not self._given:
            return 0
        letter_topic = base_name(topic)
        try:
            origin = message.properties().get(REAL_TOPIC, "")
        except UnreadableError:
            origin = ""
        named_after = letter_topic.removesuffix(self._retry_suffix)
        for each in (topic, letter_topic, origin, base_name(origin), named_after):
            if each in self._given:
                return self._given[each]
        return 0
