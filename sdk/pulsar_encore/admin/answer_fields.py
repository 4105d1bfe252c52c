"""Fields of JSON answers. A missing field and one of another type have the same default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def number(answer: Mapping[str, Any], name: str, default: int = 0) -> int:
    value = answer.get(name)
    return int(value) if isinstance(value, int | float) else default


def named(answer: Mapping[str, Any], name: str) -> dict[str, Mapping[str, Any]]:
    """Return the objects of a field by name."""
    value = answer.get(name)
    if not isinstance(value, Mapping):
        return {}
    return {f"{key}": each for key, each in value.items() if isinstance(each, Mapping)}


def listed(answer: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """Return the objects of a list."""
    value = answer.get(name)
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def position(text: object) -> tuple[int, int] | None:
    """Parse ``ledger:entry``, or return None."""
    try:
        ledger, entry = map(int, str(text).split(":"))
    except ValueError:
        return None
    return ledger, entry
