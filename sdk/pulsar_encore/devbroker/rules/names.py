"""Parse topic names.

Messages of non-persistent topics have no ids, and count as acked once delivered. Pulsar also drops
them if no consumer has permits; this broker does not.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .refusal import Refusal

PARTITION_MARK = "-partition-"
_PARTITION = re.compile(PARTITION_MARK + r"(0|[1-9]\d{0,8})$")  # "-partition-07" is not a partition


class TopicName(NamedTuple):
    """A parsed name.

    Args:
        full: With domain, namespace and any partition suffix.
        namespace: ``tenant/namespace``.
        base: `full` without the partition suffix.
        partition: Partition number, or -1 if the topic is not a partition.
    """

    full: str
    namespace: str
    base: str
    partition: int


def parse(name: str) -> TopicName:
    """Parse a topic name. Short names mean ``persistent://public/default``."""
    domain, mark, rest = name.partition("://")
    if not mark:
        domain, rest = "persistent", name
    parts = rest.split("/")
    if len(parts) == 1 and not mark:
        parts = ["public", "default", *parts]
    if len(parts) != 3 or not all(part.strip() for part in parts):
        raise Refusal("InvalidTopicName", f"{name!r} is not tenant/namespace/topic")
    if domain not in ("persistent", "non-persistent"):
        raise Refusal("InvalidTopicName", f"{name!r} has an unknown domain {domain!r}")
    full = f"{domain}://{'/'.join(parts)}"
    found = _PARTITION.search(full)
    base = full[: found.start()] if found else full
    return TopicName(full, "/".join(parts[:2]), base, int(found[1]) if found else -1)
