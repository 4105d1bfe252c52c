"""A letter of a dead-letter topic, and where a replay may send it.

Owns `Letter`, with the rules of a replay over the format that `letters.reading` reads. Pure. Where
a letter wants to go may be its publisher's own word, and a replay has an operator's rights.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Final

from ..errors import ConfigurationError
from ..letters import REAL_SUBSCRIPTION, REAL_TOPIC
from ..letters import letter_reader as reading
from ..letters.letter_writer import replayed_copy
from ..message import Message
from ..values.outgoing_message import OutgoingMessage
from ..values.topic_names import base_name

_TOPIC: Final = re.compile(r"(?:non-)?persistent://[^/\s]+/[^/\s]+/[^\s]+")


class Letter(reading.LetterFacts[Message]):
    """A message of a dead-letter topic, as `letters.reading.Letter` reads it, and its way back.

    Attributes:
        message: As read; the payload, keys and times are there.
    """

    __slots__ = ()

    def named_by(self, dead_topic: str) -> bool:
        """Whether a dead-letter topic is named after the topic and subscription, as Java does it.

        `<topic>-<subscription>-DLQ`, also of a partition. Any other name is somebody's choice.
        """
        stem = base_name(dead_topic).removesuffix("-DLQ")
        if stem == base_name(dead_topic) or not self.real_topic:
            return False
        subscription = self.properties.get(REAL_SUBSCRIPTION)
        if subscription is None:  # another client's letter
            return stem.startswith(f"{self.real_topic}-")
        return stem.endswith(f"-{subscription}") and (
            base_name(stem.removesuffix(f"-{subscription}")) == self.real_topic
        )

    def target(self, dead_topic: str, target: str | None, allowed: Container[str]) -> str:
        """Where a replay sends it.

        Args:
            dead_topic: Full name of the topic it was read from.
            target: Full name of another topic, or None for its own.
            allowed: Topics it may go to that the dead-letter topic is not named after.

        Raises:
            ConfigurationError: It does not say, what it says is no place for it, or nobody chose
                that place.
        """
        topic = target or self.real_topic
        if not topic:
            raise ConfigurationError(f"the letter has no {REAL_TOPIC}: name a target topic for it")
        if not _TOPIC.fullmatch(topic) or not topic.isprintable():
            raise ConfigurationError(
                f"its {REAL_TOPIC} {topic[:100]!r} is not the name of a topic: name a "
                "target topic for it"
            )
        if topic == base_name(dead_topic):
            raise ConfigurationError(
                f"its {REAL_TOPIC} is the dead-letter topic itself: name a target topic"
            )
        if target is None and topic not in allowed and not self.named_by(dead_topic):
            raise ConfigurationError(
                f"its {REAL_TOPIC} {topic[:200]!r} is not the topic that {dead_topic} is "
                "named after, and whoever published the message may have written it: choose the "
                "topic by its name to send letters there (real_topics, --real-topic), or name a "
                "target topic"
            )
        return topic

    def copy(
        self, replay_id: str, *, keep_counters: bool, refuse_bytes: bool = False
    ) -> OutgoingMessage:
        """The message to send: the original's content, and where it comes from.

        Raises:
            NotSupportedError: The transport cannot read, or cannot tell, all of it.
        """
        return replayed_copy(
            self.message,
            replay_id=replay_id,
            keep_counters=keep_counters,
            refuse_byte_keys=refuse_bytes,
        )
