"""Topic names: short and full names, and partitions."""

from __future__ import annotations

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
