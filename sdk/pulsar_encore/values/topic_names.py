"""Topic names: short and full, and those of letter topics. Values; no I/O.

The retry-letter and dead-letter topics of a consumer are named after the first of its topics, in
the order of the strings as given (Java's rule).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_PARTITION: Final = "-partition-"


def full_name(topic: str) -> str:
    """`persistent://tenant/namespace/name` of a topic given short or full."""
    if "://" in topic:
        return topic
    return "persistent://" + (topic if topic.count("/") == 2 else f"public/default/{topic}")


def base_name(topic: str) -> str:
    """The topic without the `-partition-N` of one of its partitions."""
    head, mark, number = topic.rpartition(_PARTITION)
    return head if mark and number.isdigit() else topic


def partition_of(topic: str) -> int:
    """The number of a partition; -1 for a topic that is none."""
    head, mark, number = topic.rpartition(_PARTITION)
    return int(number) if head and mark and number.isdigit() else -1


def retry_topic_of(topics: Iterable[str], subscription: str) -> str:
    """Java's name of the retry-letter topic: one for all topics of the consumer."""
    return f"{base_name(full_name(min(topics)))}-{subscription}-RETRY"


def dead_topic_of(topics: Iterable[str], subscription: str) -> str:
    """Java's name of the dead-letter topic of a consumer with retry enabled."""
    return f"{base_name(full_name(min(topics)))}-{subscription}-DLQ"


def dead_topic_of_one(topic: str, subscription: str) -> str:
    """Java's name without retry: after the topic a message came from, partition included."""
    return f"{topic}-{subscription}-DLQ"
