"""Log lines about letters: one for each kind of failure in 10 s, however many there are."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final

from ...letters.property_names import ATTEMPTS, ERROR_CLASS, ERROR_MESSAGE, FINGERPRINT, REASON
from ...message import Message

_EVERY_S: Final = 10.0
_FAILURES_EVERY_S: Final = 30.0
_MOST_KINDS: Final = 1_000  # fingerprints; the oldest is forgotten first
_MAX_TEXT: Final = 200


class _Line:
    """The last line of one fingerprint, and how many letters were left out since."""

    __slots__ = ("at", "left_out", "topic")

    def __init__(self, at: float, topic: str) -> None:
        self.at = at
        self.topic = topic
        self.left_out = 0


class LetterLog:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        logger_of: Callable[[str], logging.Logger] = logging.getLogger,
    ) -> None:
        self._logger = logger_of(__name__)
        self._loop = loop
        self._lines: OrderedDict[str, _Line] = OrderedDict()  # by fingerprint
        self._failed_at: float | None = None
        self._failures = 0  # failed letters since the last line

    def stored(self, message: Message, topic: str, properties: Mapping[str, str]) -> None:
        """Log that a dead letter was stored, at WARNING."""
        now, fingerprint = self._loop.time(), properties.get(FINGERPRINT, "")
        before = self._lines.get(fingerprint)
        if before is not None and now - before.at < _EVERY_S:
            before.left_out += 1
            return
        self._logger.warning(
            "dead letter: %r was stored in %s after attempt %s: %s (fingerprint %s)%s",
            message.message_id(),
            topic,
            properties.get(ATTEMPTS, "?"),
            _reason(properties),
            fingerprint,
            _left_out(before),
        )
        self._lines.pop(fingerprint, None)
        self._lines[fingerprint] = _Line(now, topic)
        if len(self._lines) > _MOST_KINDS:
            self._report(*self._lines.popitem(last=False))

    def failed(self, topic: str, error: Exception) -> None:
        """Log that a letter could not be stored, at ERROR. Its message is not lost."""
        now = self._loop.time()
        self._failures += 1
        if self._failed_at is not None and now - self._failed_at < _FAILURES_EVERY_S:
            return
        more = f" ({self._failures} letters since the last line)" if self._failures > 1 else ""
        self._failed_at, self._failures = now, 0
        self._logger.error(
            "cannot send letters to %s; the original messages are retried%s: %s", topic, more, error
        )

    def close(self) -> None:
        """Log the numbers of letters that were left out since the last lines."""
        for fingerprint, line in self._lines.items():
            self._report(fingerprint, line)
        self._lines.clear()

    def _report(self, fingerprint: str, line: _Line) -> None:
        if line.left_out:
            self._logger.warning(
                "%d more dead letters with fingerprint %s were stored, the first in %s",
                line.left_out,
                fingerprint,
                line.topic,
            )


def _left_out(line: _Line | None) -> str:
    if line is None or not line.left_out:
        return ""
    return f"; {line.left_out} more of this kind since the last line"


def _reason(properties: Mapping[str, str]) -> str:
    """Return the failure in one line."""
    parts = [properties[each] for each in (ERROR_CLASS, ERROR_MESSAGE) if each in properties]
    text = ": ".join(parts) or properties.get(REASON, "unknown")
    text = " ".join(text.split())
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 3] + "..."
