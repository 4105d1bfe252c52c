"""Parse the C++ client's log: its records, and the broker's reasons in them. Pure.

The broker's text is logged just before the bare result code is returned (ClientConnection.cc, at
WARN and above).
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

# SimpleLogger.h: "2026-01-31 12:00:00.123 WARN  [140303244617408] ClientConnection:1731 | text".
_HEADER: Final = re.compile(
    rb"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}"
    rb" (DEBUG|INFO|WARN|ERROR) +\[(?:[1-9]\d*|0x[0-9a-fA-F]+)\] (\S+):(\d+) \| ",
    re.MULTILINE,
)
_LEVELS: Final = logging.getLevelNamesMapping()
_REFUSED: Final = re.compile(
    r"Received error response from server: (\w+) \((.*)\) -- req_id: \d+\Z"
    r"|Failed (?:partition-metadata )?lookup req_id: \d+ error: (\w+) msg: (.+)\Z",
    re.DOTALL,
)
# Logged when the client's own authentication failed. Creating calls get the same text.
_OWN_FAILURE: Final = re.compile(r"Failed to create Connect command: .+\Z", re.DOTALL)
#: Refusals kept for calls that have not ended yet.
_MAX_REFUSALS: Final = 256


class LogLine(NamedTuple):
    at: int  # offset of the record in the log, in bytes
    text: str  # may be several lines: brokers send whole schemas
    level: int = logging.WARNING
    source: str = ""
    number: int = 0


def lines(data: bytes, at: int) -> Iterator[LogLine]:
    """Yield the records in `data`, which begins at byte `at` of the log and ends with a record.

    The file logger takes no lock, so two threads may write text without a header: a warning.
    """
    headers = list(_HEADER.finditer(data))
    starts = [*(header.start() for header in headers), len(data)]
    if starts[0]:
        yield LogLine(at, _text(data[: starts[0]]))
    for header, (start, end) in zip(headers, pairwise(starts), strict=True):
        level, source, number = header.groups()
        text = _text(data[header.end() : end])
        yield LogLine(at + start, text, _LEVELS[_text(level)], _text(source), int(number))


def _text(data: bytes) -> str:
    return data.removesuffix(b"\n").decode(errors="replace")


@dataclass(slots=True)
class _Refusal:
    at: int
    result: str
    reason: str
    is_shared: bool  # equal concurrent lookups share one line
    is_taken: bool = False


class Refusals:
    """The broker's recent refusals, until a call takes its reason."""

    def __init__(self) -> None:
        self._recent: deque[_Refusal] = deque(maxlen=_MAX_REFUSALS)

    def add(self, line: LogLine) -> None:
        if own := _OWN_FAILURE.search(line.text):
            self._recent.append(_Refusal(line.at, "AuthenticationError", own[0], True))
        elif found := _REFUSED.search(line.text):
            result, reason = found[1] or found[3], found[2] or found[4]
            if reason:
                # Some names in the log have a prefix that the codes lack ("ResultNotAllowedError").
                result = result.removeprefix("Result")
                self._recent.append(_Refusal(line.at, result, reason, found[3] is not None))

    def take(self, result: str, since: int) -> str:
        """Return the reason of a call that ended with `result` and began at log offset `since`.

        "" if there is none, or if several differ.
        """
        all_found = [each for each in self._recent if each.result == result and each.at >= since]
        found = [each for each in all_found if not each.is_taken] or all_found
        if len({each.reason for each in found}) != 1:
            return ""
        last = found[-1]
        last.is_taken = True
        if not last.is_shared:
            self._recent.remove(last)
        return last.reason

    def forget(self, result: str, reason: str) -> None:
        """Drop a reason that the C++ client returned with its call."""
        for each in reversed(self._recent):
            if (each.result, each.reason, each.is_taken) == (result, reason, False):
                self._recent.remove(each)
                return
