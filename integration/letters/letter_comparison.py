"""Letters of two clients side by side, as dicts of what the Java side prints."""

from __future__ import annotations

from typing import Any

import pulsar_encore as encore
from pulsar_encore import letters


def generation(letter: dict[str, Any]) -> tuple[str, ...]:
    properties = letter["properties"]
    return properties[letters.RECONSUME_TIMES], properties[letters.DELAY_TIME]


def origin_of(properties: dict[str, str]) -> dict[str, str | None]:
    """What points back."""
    names = (
        letters.ORIGIN_MESSAGE_ID,
        letters.ORIGIN_MESSAGE_ID_LEGACY,
        letters.REAL_TOPIC,
        letters.REAL_SUBSCRIPTION,
    )
    return {name: properties.get(name) for name in names}


def as_letter(message: encore.Message) -> dict[str, Any]:
    """A message as the Java side prints one."""
    return {
        "data": message.data().decode(),
        "key": message.partition_key(),
        "ordering_key": message.ordering_key(),
        "event_ms": message.event_timestamp(),
        "properties": message.properties(),
    }


def equal_letters(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Same content, and the same properties but for evidence."""

    def without_evidence(letter: dict[str, Any]) -> dict[str, Any]:
        properties = {n: v for n, v in letter["properties"].items() if not n.startswith("ENCORE_")}
        fields = ("data", "key", "ordering_key", "event_ms")
        return {**{name: letter[name] for name in fields}, "properties": properties}

    return without_evidence(one) == without_evidence(other)
