"""Log lines about failed attempts: one for each kind of failure in 10 s, with its traceback."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Hashable
from types import CodeType
from typing import Final

from ..message import Message
from .retry_policy import NoSchema, Retry
from .scheduler import Order

_EVERY_MS: Final = 10_000
_LONG_WAIT_MS: Final = 600_000
_MOST_KINDS: Final = 1_000  # the kind that was logged first is forgotten first


class FailureLog:
    """The failed attempts of one worker that are followed by another attempt.

    Without these lines, an error in a handler would be seen only when the attempts are used up.
    """

    def __init__(self, worker: str, logger: logging.Logger) -> None:
        self._worker = worker
        self._log = logger
        self._lines: OrderedDict[Hashable, tuple[int, int]] = OrderedDict()  # time, left out since
        self._has_logged_long_wait = False

    def retried(
        self,
        message: Message,
        attempt: int,
        error: BaseException,
        delay_ms: int,
        now_ms: int,
        *,
        breaker_stays_open: bool,
    ) -> None:
        """Log a failed attempt at WARNING. A handler's `Retry` is no failure, and is not logged.

        While the breaker stays open, the line has neither a traceback nor the time of the next
        attempt: the failure that opened it was logged with its traceback, and the breaker decides.
        """
        if isinstance(error, Retry) and not isinstance(error, NoSchema):
            return
        left_out = self._count((type(error), _raised_in(error)), now_ms)
        if left_out is None:
            return
        more = _more(left_out, "failures")
        if breaker_stays_open:
            self._log.warning(
                "worker %s: attempt %d at %r failed, and the breaker stays open%s: %r",
                self._worker,
                attempt,
                message,
                more,
                error,
            )
            return
        self._log.warning(
            "worker %s: attempt %d at %r failed, the next one is in %.1f s%s: %r",
            self._worker,
            attempt,
            message,
            delay_ms / 1000,
            more,
            error,
            exc_info=error,
        )

    def waits(self, delay_ms: int, order: Order) -> None:
        """Log the first long wait of a failed message in the worker."""
        if delay_ms > _LONG_WAIT_MS and not self._has_logged_long_wait:
            self._has_logged_long_wait = True
            self._log.warning(
                "worker %s: a message waits here for %.0f s%s. It fills the unacked window of the "
                "subscription meanwhile",
                self._worker,
                delay_ms / 1000,
                "" if order is Order.NONE else ", and its key or partition waits behind it",
            )

    def discarded(
        self, message: Message, reason: str, error: BaseException | None, now_ms: int
    ) -> None:
        """Log at WARNING that a message was acked without success."""
        where = None if error is None else _raised_in(error)
        left_out = self._count(("discarded", type(error), where), now_ms)
        if left_out is not None:
            more = _more(left_out, "discarded messages")
            self._log.warning(
                "worker %s discarded %r: %s%s", self._worker, message, reason, more, exc_info=error
            )

    def _count(self, kind: Hashable, now_ms: int) -> int | None:
        """Return how many lines of a kind were left out; None if this one must be, too."""
        at_ms, left_out = self._lines.get(kind, (now_ms - _EVERY_MS, 0))
        if now_ms - at_ms < _EVERY_MS:
            self._lines[kind] = (at_ms, left_out + 1)
            return None
        self._lines.pop(kind, None)
        self._lines[kind] = (now_ms, 0)
        if len(self._lines) > _MOST_KINDS:
            self._lines.popitem(last=False)
        return left_out


def _more(left_out: int, what: str) -> str:
    return f" ({left_out} more {what} of this kind since the last line)" if left_out else ""


def _raised_in(error: BaseException) -> CodeType | None:
    """Return the code of the function that raised an error."""
    step = error.__traceback__
    if step is None:
        return None
    while step.tb_next is not None:
        step = step.tb_next
    return step.tb_frame.f_code
