"""Letters of two clients side by side, as dicts of what the Java side prints."""

from __future__ import annotations

from typing import Any

import pulsar_encore as encore
from pulsar_encore import letters


def generation(letter: dict[str, Any]) -> tuple[str, ...]:
    given = letter["properties"]
    return given[letters.RECONSUME_TIMES], given[letters.DELAY_TIME]


def pointers(given: dict[str, str]) -> dict[str, str | None]:
    """What points back."""
    names = (
        letters.ORIGIN_MESSAGE_ID,
        letters.ORIGIN_MESSAGE_ID_LEGACY,
        letters.REAL_TOPIC,
        letters.REAL_SUBSCRIPTION,
    )
    return {name: given.get(name) for name in names}


def mine(message: encore.Message) -> dict[str, Any]:
    """A message as the Java side prints one."""
    return {
        "data": message.data().decode(),
        "key": message.partition_key(),
        "ordering_key": message.ordering_key(),
        "event_ms": message.event_timestamp(),
        "properties": message.properties(),
    }


def alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Same content, and the same properties but for evidence."""

    def bare(letter: dict[str, Any]) -> dict[str, Any]:
        kept = {n: v for n, v in letter["properties"].items() if not n.startswith("ENCORE_")}
        fields = ("data", "key", "ordering_key", "event_ms")
        return {**{name: letter[name] for name in fields}, "properties": kept}

    return bare(one) == bare(other)
