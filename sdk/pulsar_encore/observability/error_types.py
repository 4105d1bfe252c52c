"""Names of errors for the attribute `error.type` and the label `error_type`."""

from __future__ import annotations

from typing import Final

OTHER: Final = "_OTHER"
"""OpenTelemetry's name for every value that is not listed."""

MAX_TYPES: Final = 100


def error_type(error: BaseException) -> str:
    """Return the full name of the class of an error, without the module of built-in errors."""
    kind = type(error)
    if kind.__module__ == "builtins":
        name = kind.__qualname__
    else:
        name = f"{kind.__module__}.{kind.__qualname__}"
    # A lone surrogate in one name would fail the whole scrape, or a whole batch of spans.
    return name.encode("utf-8", "backslashreplace").decode()


class ErrorTypes:
    """Names of errors, of which there are at most 100.

    A program can make classes of errors while it runs, and each would be a series for ever.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()

    def label_of(self, error: BaseException | None) -> str:
        """Return the name of an error, or "_OTHER" for a new one after 100, and for None."""
        if error is None:
            return OTHER
        name = error_type(error)
        if name not in self._known:
            if len(self._known) >= MAX_TYPES:
                return OTHER
            self._known.add(name)
        return name
