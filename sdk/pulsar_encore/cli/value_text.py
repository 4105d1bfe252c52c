from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any


def time_text(ms: int) -> str:
    """Format a time in UTC."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"  # out of the range of dates


def json_text(value: Any, indent: int | None = 2) -> str:
    """Encode as JSON in printable ASCII."""
    return json.dumps(value, indent=indent).replace("\x7f", "\\u007f") + "\n"
