"""The output of the recipe for the order of keys: starts and ends of handler calls."""

from __future__ import annotations

import re


class KeyLines:
    """The lines of one program, or of several that write to one file."""

    def __init__(self, printed: str) -> None:
        pattern = r"(\S+) (begins|ends) (\w+)(?:, attempt (\d))?"
        found = [re.fullmatch(pattern, line) for line in printed.splitlines()]
        assert None not in found, printed
        self._events = [each.groups() for each in found if each is not None]

    def values(self, key: str, kind: str) -> list[str]:
        """Return the values of a key's calls that began, or that ended without a failure."""
        return [value for at, what, value, _ in self._events if (at, what) == (key, kind)]

    def overlaps(self, key: str) -> bool:
        """Return True if a call of a key began while another one ran. A failure prints no end."""
        running = ""
        for at, what, value, _ in self._events:
            if at != key:
                continue
            if what == "begins" and running not in ("", "declined"):
                return True
            if what == "ends" and running != value:
                return True
            running = value if what == "begins" else ""
        return False
