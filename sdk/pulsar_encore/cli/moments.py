"""Times and durations that a user types."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Final

from ..deadletters import printable
from ..errors import ConfigurationError

_AGO: Final = re.compile(r"(\d{1,9})([smhd])", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def duration_ms(text: str, name: str) -> int:
    """Parse a duration, such as 10s, into ms."""
    found = _AGO.fullmatch(text)
    if found is None:
        raise ConfigurationError(
            f"{name} must be like 10s, 5m, 2h or 7d, got {printable(text, 50)!r}"
        )
    return int(found[1]) * _SECONDS[found[2]] * 1000


def moment(text: str | None, name: str) -> float | None:
    """Parse a time: a duration before now, or a date and time, local unless it has an offset.

    Returns seconds since the epoch.
    """
    if text is None:
        return None
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return time.time() - int(ago[1]) * _SECONDS[ago[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise ConfigurationError(
            f"{name} must be like 30m, 2h, 7d, or 2026-01-31T12:00, got {printable(text, 50)!r}"
        ) from error
