"""What letters count, whose counts are believed, and when they are used up.

The rules are Java's, so that Java and this project understand each other's letters:
`docs/notes/consumer-semantics.md#dead-letters-by-nack-or-ack-timeout`,
`docs/notes/consumer-semantics.md#retry-letters` and
`docs/notes/consumer-semantics.md#properties-of-letters`. There is one exception. On an ordinary
topic these properties are whatever the publisher wrote, often copied from another message, and a
replay acts on them with an operator's rights. There they are not trusted.
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
    """How often the message was reconsumed so far; what is no number counts as never."""
    return _count(properties.get(RECONSUME_TIMES, ""))


def parked_attempts(properties: Mapping[str, str]) -> int:
    """Attempts that were made before a nack was parked on the retry-letter topic.

    Of that very letter: a Java consumer that reconsumes it writes a new one, counts that itself,
    and copies every property along.
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
    """Whether a message's letter properties were written for this subscription, and are believed.

    So on its retry-letter topics, and for what a replay sent back to the topic it died on. What a
    publisher copies from one topic's messages to another's is neither.

    Args:
        properties: The message's.
        topic: Full name of the topic it was read from.
        subscription: That read it.
        from_retry_topic: That topic is the subscription's retry-letter topic, whatever its name.
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
    """Which attempt at a message this is on the reconsume path, 1 for the first.

    Args:
        original: The message.
        subscription: That read it.
        from_retry_topic: As for `is_letter`.

    Raises:
        NotSupportedError: Its properties cannot be read.
    """
    properties = original.properties()
    times = reconsume_times(properties)
    if not times:
        return 1
    topic = original.topic_name()
    believed = is_letter(properties, topic, subscription, from_retry_topic=from_retry_topic)
    return times + 1 if believed else 1


def used_up(failed_attempts: int, max_redeliver_count: int) -> bool:
    """Whether a message that failed so often goes to the dead-letter topic.

    One limit, and a count for each path. By `reconsume_later` it is `reconsume_attempt`, which is
    of the letter's own. By nack and ack timeout it is that of the redeliveries: an attempt that
    fails is number `redelivery_count + 1`, and a message that comes back has failed
    `redelivery_count` times.
    """
    return failed_attempts > max_redeliver_count
