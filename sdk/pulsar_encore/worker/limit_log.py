"""Log lines about an open breaker, and about rejections in a row."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from .worker_core import WorkerCore

_NAMES: Final = {"breaker": "outage", "rejections": "series of rejections"}


class LimitLog:
    """Logs when the breaker opens or closes, and when the reject limit is reached or left.

    Args:
        breaker_changed: Called with True and the last error when the breaker opens, and with False
            when it closes.

    Attributes:
        in_force: The limits that let the worker start trials only.
    """

    def __init__(
        self,
        worker: str,
        logger: logging.Logger,
        breaker_changed: Callable[[bool, BaseException | None], None] | None = None,
    ) -> None:
        self._breaker_changed = breaker_changed
        self._worker = worker
        self._log = logger
        self.in_force: set[str] = set()

    def breaker_stays_open(self, core: WorkerCore) -> bool:
        """Return True if the breaker is open, and was open at the last `note`."""
        return core.is_breaker_open and "breaker" in self.in_force

    def note(self, core: WorkerCore) -> None:
        """Log what has changed since the last call."""
        limits = set[str]()
        if core.is_breaker_open:
            limits.add("breaker")
        if core.is_reject_limit_reached:
            limits.add("rejections")
        if limits == self.in_force:
            return
        began, ended = limits - self.in_force, self.in_force - limits
        self.in_force = limits
        snapshot = core.snapshot()
        if self._breaker_changed is not None and "breaker" in began | ended:
            self._breaker_changed("breaker" in began, snapshot.breaker_error)
        if "breaker" in began:
            self._log.warning(
                "worker %s: the breaker is open and only probes start: %r",
                self._worker,
                snapshot.breaker_error,
            )
        if "rejections" in began:
            self._log.error(
                "worker %s: %d messages in a row were rejected. It takes one message each 30 s "
                "until one is processed, and dead-letters none. Last error: %r",
                self._worker,
                snapshot.rejects_in_row,
                snapshot.reject_error,
            )
        for each in sorted(ended):
            self._log.warning("worker %s goes on: the %s ended", self._worker, _NAMES[each])
