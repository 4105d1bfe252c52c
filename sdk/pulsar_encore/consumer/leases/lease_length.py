"""The length of a lease, and its limit."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from ...errors import ConfigurationError
from ...values.backoff import seconds_of

#: A longer time is a mistake of units. RocketMQ's longest is 12 hours.
LONGEST: Final = timedelta(days=30)


def length_ms(length: float | timedelta, name: str) -> int:
    """Return a length in ms, from 1 ms to `LONGEST`."""
    found_s = seconds_of(length, name)
    if not 0.001 <= found_s <= LONGEST.total_seconds():
        raise ConfigurationError(f"{name} must be from 1 ms to {LONGEST.days} days, got {length!r}")
    return round(found_s * 1000)
