"""Compare letters of two clients, as the dicts that the Java client prints."""

from __future__ import annotations

from typing import Any

import pulsar_encore as encore
from pulsar_encore import letters


def generation(letter: dict[str, Any]) -> tuple[str, ...]:
    properties = letter["properties"]
    return properties[letters.RECONSUME_TIMES], properties[letters.DELAY_TIME]


def origin_of(properties: dict[str, str]) -> dict[str, str | None]:
    """Return the properties that identify the original message."""
    names = (
        letters.ORIGIN_MESSAGE_ID,
        letters.ORIGIN_MESSAGE_ID_LEGACY,
        letters.REAL_TOPIC,
        letters.REAL_SUBSCRIPTION,
    )
    return {name: properties.get(name) for name in names}


def as_letter(message: encore.Message) -> dict[str, Any]:
    """Return a message in the form that the Java client prints."""
    return {
        "data": message.data().decode(),
        "key": message.partition_key(),
        "ordering_key": message.ordering_key(),
        "event_ms": message.event_timestamp(),
        "properties": message.properties(),
    }


def equal_letters(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """True if content and properties are equal. Evidence properties are ignored."""

    def without_evidence(letter: dict[str, Any]) -> dict[str, Any]:
        properties = {n: v for n, v in letter["properties"].items() if not n.startswith("ENCORE_")}
        fields = ("data", "key", "ordering_key", "event_ms")
        return {**{name: letter[name] for name in fields}, "properties": properties}

    return without_evidence(one) == without_evidence(other)
