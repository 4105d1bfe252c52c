"""A letter of a dead letter topic, and the topic to which a replay sends it."""

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
    """A message of a dead letter topic, with its facts and its replay target."""

    __slots__ = ()

    def named_by(self, dead_topic: str) -> bool:
        """Return True if a dead letter topic is named after the letter's topic and subscription.

        Java's default name is `<topic>-<subscription>-DLQ`. The topic may be a partition.
        """
        stem = base_name(dead_topic).removesuffix("-DLQ")
        if stem == base_name(dead_topic) or not self.real_topic:
            return False
        subscription = self.properties.get(REAL_SUBSCRIPTION)
        if subscription is None:  # other clients do not write the subscription
            return stem.startswith(f"{self.real_topic}-")
        return stem.endswith(f"-{subscription}") and (
            base_name(stem.removesuffix(f"-{subscription}")) == self.real_topic
        )

    def target(self, dead_topic: str, target: str | None, allowed: Container[str]) -> str:
        """Return the full name of the topic to which a replay sends the letter.

        Args:
            dead_topic: Full name of the topic from which the letter was read.
            target: Full name of another topic; None for the topic that the letter names.
            allowed: Topics that the operator allows besides the one that `dead_topic` is named
                after.

        Raises:
            ConfigurationError: if the letter names no topic, or names one that is invalid, is the
                dead letter topic itself, or is not allowed.
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
        """Return the message to send: the original content, and properties that name the letter.

        Raises:
            NotSupportedError: if the transport cannot read or represent all of the message.
        """
        return replayed_copy(
            self.message,
            replay_id=replay_id,
            keep_counters=keep_counters,
            refuse_byte_keys=refuse_bytes,
        )
