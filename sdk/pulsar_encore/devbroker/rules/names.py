"""Topic names as the protocol spells them.

A topic whose name says non-persistent is one: what is on it has no id, and is done with once it
was delivered. Of what Pulsar drops there, because nobody has permits, nothing is dropped here.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .refusal import Refusal

PARTITION_MARK = "-partition-"
_PARTITION = re.compile(PARTITION_MARK + r"(0|[1-9]\d{0,8})$")  # "-partition-07" is none


class TopicName(NamedTuple):
    """A parsed name.

    Args:
        full: ``persistent://tenant/namespace/topic``, with the partition's suffix if it has one;
            or non-persistent.
        namespace: ``tenant/namespace``.
        base: `full` without the suffix.
        partition: -1 when there is no suffix.
    """

    full: str
    namespace: str
    base: str
    partition: int


def parse(name: str) -> TopicName:
    """Read a topic name; short names mean ``persistent://public/default``.

    Raises:
        Refusal: InvalidTopicName.
    """
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
