"""When the properties of a letter are trusted."""

from __future__ import annotations

from collections.abc import Mapping

from ..values.topic_names import base_name, full_name
from .property_names import REAL_SUBSCRIPTION, REAL_TOPIC, REPLAY_ID


def is_letter(
    properties: Mapping[str, str],
    topic: str,
    subscription: str,
    *,
    from_retry_topic: bool = False,
) -> bool:
    """Return True if a message's letter properties belong to this subscription and can be trusted.

    That holds on the subscription's retry letter topics, whatever their names are
    (`from_retry_topic`), and for messages that a replay sent back to their topic. It does not hold
    where a publisher copied properties from another message.
    """
    if from_retry_topic:
        return True
    topic = base_name(topic)
    if topic.endswith(f"-{subscription}-RETRY"):
        return True
    real_topic = properties.get(REAL_TOPIC, "")
    return (
        REPLAY_ID in properties
        and base_name(full_name(real_topic)) == topic
        and properties.get(REAL_SUBSCRIPTION) == subscription
    )
