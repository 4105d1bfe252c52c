"""Attempt counts in letters: how to read them, when to trust them, and the limit.

The rules are Java's, so that Java and this project understand each other's letters:
`docs/notes/consumer-semantics.md#dead-letters-by-nack-or-ack-timeout`,
`docs/notes/consumer-semantics.md#retry-letters` and
`docs/notes/consumer-semantics.md#properties-of-letters`. There is one exception: on an ordinary
topic the counts are not trusted. The publisher may have copied them from another message, and a
replay acts on them with an operator's rights.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..values.topic_names import base_name, full_name
from .original_message import OriginalMessage
from .properties import (
    PARKED_LOOKS,
    PARKED_TIMES,
    REAL_SUBSCRIPTION,
    REAL_TOPIC,
    RECONSUME_TIMES,
    REPLAY_ID,
)


def reconsume_times(properties: Mapping[str, str]) -> int:
    """Return how often the message was reconsumed; 0 if the property is not a number."""
    return _count(properties.get(RECONSUME_TIMES, ""))


def parked_attempts(properties: Mapping[str, str]) -> int:
    """Return the attempts made before a nack overflowed to the retry letter topic.

    The count is valid for that letter only. A Java consumer that reconsumes the letter writes a new
    one with its own count and copies all other properties, this one included. `PARKED_TIMES` tells
    the two letters apart.
    """
    parked_at = properties.get(PARKED_TIMES)
    if parked_at is not None and parked_at != properties.get(RECONSUME_TIMES, "0"):
        return 0
    return _count(properties.get(PARKED_LOOKS, ""))


def _count(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def is_letter(
    properties: Mapping[str, str],
    topic: str,
    subscription: str,
    *,
    from_retry_topic: bool = False,
) -> bool:
    """Return True if a message's letter properties belong to this subscription and can be trusted.

    That holds on the subscription's retry letter topics, and for messages that a replay sent back
    to their topic. It does not hold where a publisher copied properties from another message.

    Args:
        properties: Properties of the message.
        topic: Full name of the topic that the message was read from.
        subscription: Name of the subscription that read it.
        from_retry_topic: True if that topic is the subscription's retry letter topic, whatever its
            name is.
    """
    topic = base_name(topic)
    if from_retry_topic or topic.endswith(f"-{subscription}-RETRY"):
        return True
    real_topic = properties.get(REAL_TOPIC, "")
    return (
        REPLAY_ID in properties
        and base_name(full_name(real_topic)) == topic
        and properties.get(REAL_SUBSCRIPTION) == subscription
    )


def reconsume_attempt(
    original: OriginalMessage, subscription: str, *, from_retry_topic: bool = False
) -> int:
    """Return the number of this delivery attempt on the reconsume path, 1 for the first.

    Args:
        original: The message.
        subscription: Name of the subscription that read it.
        from_retry_topic: As for `is_letter`.

    Raises:
        NotSupportedError: if the properties cannot be read.
    """
    properties = original.properties()
    times = reconsume_times(properties)
    if not times:
        return 1
    topic = original.topic_name()
    trusted = is_letter(properties, topic, subscription, from_retry_topic=from_retry_topic)
    return times + 1 if trusted else 1
