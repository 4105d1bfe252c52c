"""Attempt counts in letters.

The rules are Java's, so that Java and this project understand each other's letters:
`docs/notes/consumer-semantics.md#dead-letters-by-nack-or-ack-timeout`,
`docs/notes/consumer-semantics.md#retry-letters` and
`docs/notes/consumer-semantics.md#properties-of-letters`. There is one exception: on an ordinary
topic the counts are not trusted. The publisher may have copied them from another message.
"""

from __future__ import annotations

from collections.abc import Mapping

from .letter_trust import is_letter
from .original_message import OriginalMessage
from .property_names import PARKED_LOOKS, PARKED_TIMES, RECONSUME_TIMES


def reconsume_times(properties: Mapping[str, str]) -> int:
    """Return how often the message was reconsumed; 0 if the property is no number."""
    return _count(properties.get(RECONSUME_TIMES, ""))


def overflowed_attempts(properties: Mapping[str, str]) -> int:
    """Return the attempts made before a nack overflowed to the retry letter topic.

    The count is valid for that letter only. A Java consumer that reconsumes the letter copies this
    property to a new one, which has its own count. `PARKED_TIMES` tells the two letters apart.
    """
    parked_at = properties.get(PARKED_TIMES)
    if parked_at is not None and parked_at != properties.get(RECONSUME_TIMES, "0"):
        return 0
    return _count(properties.get(PARKED_LOOKS, ""))


def _count(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def reconsume_attempt(
    original: OriginalMessage,
    subscription: str,
    *,
    from_retry_topic: bool = False,
    found: Mapping[str, str] | None = None,
) -> int:
    """Return the number of this delivery attempt on the reconsume path, 1 for the first.

    `found` are the properties of the original, if the caller has read them.
    """
    properties = original.properties() if found is None else found
    times = reconsume_times(properties)
    if not times:
        return 1
    topic = original.topic_name()
    trusted = is_letter(properties, topic, subscription, from_retry_topic=from_retry_topic)
    return times + 1 if trusted else 1
