"""The names and attributes of spans, computed from topics and messages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from ..errors import EncoreError
from ..letters.id_text import id_text
from ..letters.letter_trust import is_letter
from ..letters.property_names import REAL_TOPIC
from ..message import Message, size_of
from ..values.topic_names import base_name, full_name, partition_of
from . import attribute_names as names

Attributes: TypeAlias = dict[str, str | int | float]

_DEFAULT_NAMESPACE: Final = "public/default/"


@lru_cache(maxsize=4096)
def span_name(operation: Literal["send", "process"], topic: str) -> str:
    """Return the name of a span, such as `send orders`.

    The namespace is left out if it is `public/default`, the partition always.
    """
    name = base_name(full_name(topic)).partition("://")[2]
    return f"{operation} {name.removeprefix(_DEFAULT_NAMESPACE)}"


def start_attributes(
    operation: Literal["send", "process"], topic: str, subscription: str | None = None
) -> Attributes:
    """Return the attributes that a sampler sees. They are the same for all messages of a topic."""
    return _start_attributes(operation, topic, subscription).copy()


@lru_cache(maxsize=4096)
def _start_attributes(operation: str, topic: str, subscription: str | None) -> Attributes:
    topic = full_name(topic)
    found: Attributes = {
        names.SYSTEM: "pulsar",
        names.OPERATION_NAME: operation,
        names.OPERATION_TYPE: operation,
        names.DESTINATION: base_name(topic),
    }
    if (partition := partition_of(topic)) >= 0:
        found[names.PARTITION] = str(partition)
    if subscription is not None:
        found[names.SUBSCRIPTION] = subscription
    return found


def message_attributes(
    message: Message, properties: Mapping[str, str], subscription: str
) -> Attributes:
    """Return the attributes of one received message."""
    found: Attributes = {
        names.MESSAGE_ID: id_text(message.message_id()),
        names.BODY_SIZE: size_of(message),
    }
    try:
        found[names.ATTEMPT] = message.attempt
    except EncoreError:
        pass  # the message of a reader has no attempts
    if REAL_TOPIC in properties and is_letter(properties, message.topic_name(), subscription):
        found[names.PUBLISHED_TO] = base_name(full_name(properties[REAL_TOPIC]))
    return found
