"""Log lines about the topics of one consumer, reader or producer that are not attached.

A lost broker that serves a hundred of its topics is one cause, and makes one series of lines.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from ....values.backoff import FailureReports

LOG_NAME: Final = "pulsar_encore.connection"


class RetryLog:
    """Logs failed attempts at growing intervals, and their end. `name` begins the lines."""

    def __init__(
        self, name: str, logger_of: Callable[[str], logging.Logger] = logging.getLogger
    ) -> None:
        self.name: str = name
        self._log = logger_of(LOG_NAME)
        # None if all are attached.
        self._reports: FailureReports | None = None
        self._detached: set[str] = set()
        self._reattached = 0

    def lost(self, topic: str, now_s: float) -> None:
        if self._reports is None:
            self._reports = FailureReports(now_s)
        self._detached.add(topic)

    def refused(
        self,
        topic: str,
        now_s: float,
        error: Exception,
        *,
        attempts: int,
        elapsed_s: float,
        next_s: float,
    ) -> None:
        self.lost(topic, now_s)
        if self._reports is None or not self._reports.failed(now_s):
            self._log.debug(
                "%s: attempt %d to attach %s failed: %s", self.name, attempts, topic, error
            )
            return
        others = len(self._detached) - 1
        self._log.warning(
            "%s: %s; attempt %d%s failed, %.1f s after the loss; retried in about %.*f s: %s",
            self.name,
            f"{others + 1} of its topics are not attached" if others else "not attached",
            attempts,
            "" if self.name.endswith(topic) else f" on {topic}",
            elapsed_s,
            1 if next_s < 10 else 0,
            next_s,
            error,
        )

    def attached(self, topic: str, now_s: float) -> None:
        reports = self._reports
        if reports is None or topic not in self._detached:
            return
        self._detached.discard(topic)
        self._reattached += 1
        if self._detached:
            return
        self._log.log(
            logging.WARNING if reports.attempts else logging.INFO,
            "%s: attached again after %.1f s (%d %s)",
            self.name,
            reports.elapsed_s(now_s),
            self._reattached,
            "topic" if self._reattached == 1 else "topics",
        )
        self.forget_all()

    def forget(self, topic: str) -> None:
        self._detached.discard(topic)
        if not self._detached:
            self.forget_all()

    def forget_all(self) -> None:
        self._reports = None
        self._detached.clear()
        self._reattached = 0
