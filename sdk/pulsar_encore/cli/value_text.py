from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any


def time_text(ms: int) -> str:
    """Format a time in UTC as ISO 8601 with its offset."""
    try:
        moment = datetime.fromtimestamp(ms / 1000, UTC)
        return moment.isoformat(timespec="milliseconds" if ms % 1000 else "seconds")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"  # out of the range of dates


def json_text(value: Any, indent: int | None = 2) -> str:
    """Encode as JSON in printable ASCII."""
    return json.dumps(value, indent=indent).replace("\x7f", "\\u007f") + "\n"


def iso_time(ms: int | None) -> str | None:
    """Return `time_text`, or None without a time."""
    return None if ms is None else time_text(ms)
