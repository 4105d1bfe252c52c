"""Topic names: short and full names, partitions, and letter topics.

The letter topics of a consumer are named after the first of its topics in string order (Java's
rule).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_PARTITION: Final = "-partition-"


def full_name(topic: str) -> str:
    """Return `persistent://tenant/namespace/name` for a short or full name."""
    if "://" in topic:
        return topic
    return "persistent://" + (topic if topic.count("/") == 2 else f"public/default/{topic}")


def base_name(topic: str) -> str:
    """Return the name without the `-partition-N` of a partition."""
    head, mark, number = topic.rpartition(_PARTITION)
    return head if mark and number.isdigit() else topic


def partition_of(topic: str) -> int:
    """Return the partition number, or -1 if the topic is not a partition."""
    head, mark, number = topic.rpartition(_PARTITION)
    return int(number) if head and mark and number.isdigit() else -1


def retry_topic_of(topics: Iterable[str], subscription: str) -> str:
    """Return Java's name of the retry letter topic: one for all topics of a consumer."""
    return f"{base_name(full_name(min(topics)))}-{subscription}-RETRY"


def dead_topic_of(topics: Iterable[str], subscription: str) -> str:
    """Return Java's name of the dead letter topic of a consumer with `retry_enable`."""
    return f"{base_name(full_name(min(topics)))}-{subscription}-DLQ"


def dead_topic_of_one(topic: str, subscription: str) -> str:
    """Return Java's name of the dead letter topic of a consumer without `retry_enable`.

    It is named after the topic or partition of the message.
    """
    return f"{topic}-{subscription}-DLQ"
