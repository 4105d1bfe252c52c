"""Default names of retry letter topics and dead letter topics, as Java's client makes them.

The letter topics of a consumer are named after the first of its topics in string order.
"""

from __future__ import annotations

from collections.abc import Iterable

from .topic_names import base_name, full_name


def retry_topic_of(topics: Iterable[str], subscription: str) -> str:
    """Return the name of the retry letter topic: one for all topics of a consumer."""
    return f"{base_name(full_name(min(topics)))}-{subscription}-RETRY"


def dead_topic_of(topics: Iterable[str], subscription: str) -> str:
    """Return the name of the dead letter topic of a consumer with `retry_enable`."""
    return f"{base_name(full_name(min(topics)))}-{subscription}-DLQ"


def shared_dead_topic_of(topic: str, subscription: str) -> str:
    """Return the name of one dead letter topic for all partitions of a topic.

    `topic` is the topic or one of its partitions.
    """
    return dead_topic_of_one(base_name(full_name(topic)), subscription)


def dead_topic_of_one(topic: str, subscription: str) -> str:
    """Return the name of the dead letter topic of a consumer without `retry_enable`.

    `topic` is the topic or partition of the message.
    """
    return f"{topic}-{subscription}-DLQ"
