"""Verdicts on failed messages: wait here, overflow to the retry letter topic, or be dead-lettered.

`Verdicts` decides and does nothing. On all paths a message is delivered `max_redeliver_count` + 1
times and then dead-lettered (`letters.attempt_limit.used_up`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from ..letters.attempt_limit import used_up


class Wait(NamedTuple):
    delay_ms: int


class SendToRetryTopic(NamedTuple):
    """Here the message would fill the broker's unacked window, or may outlive this process."""

    delay_ms: int


class DeadLetter(NamedTuple):
    reason: str


Verdict: TypeAlias = Wait | SendToRetryTopic | DeadLetter


@dataclass(frozen=True, slots=True)
class WindowOverflow:
    """The longest delay, and the number of messages, above which nacks go to the retry letter
    topic."""

    longest_ms: int
    most_nacked: float


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The rules of one consumer.

    Attributes:
        delay_of: Returns the delay in ms of a nack without one, by failed attempts before.
        max_redeliver_count: None without a dead-letter policy.
        overflow: None if all nacked messages wait here.
        revive_delay: The same as `delay_of` for an expired lease; None to redeliver at once.
    """

    delay_of: Callable[[int], int]
    max_redeliver_count: int | None = None
    overflow: WindowOverflow | None = None
    revive_delay: Callable[[int], int] | None = None

    def revive_delay_of(self, failed: int) -> int:
        return 0 if self.revive_delay is None else self.revive_delay(failed)

    def on_nack(self, failed: int, delay_ms: int | None, nacked: int) -> Verdict:
        """Decide on a held message that failed, after `failed` earlier failures.

        `nacked` is the number of messages of the consumer that wait here.
        """
        if self._used_up(failed + 1):
            return DeadLetter("nack")
        if delay_ms is None:
            delay_ms = self.delay_of(failed)
        overflow = self.overflow
        if overflow is not None and (
            delay_ms > overflow.longest_ms or nacked >= overflow.most_nacked
        ):
            return SendToRetryTopic(delay_ms)
        return Wait(delay_ms)

    def on_arrival(self, failed: int, *, tried_here: bool = True) -> DeadLetter | None:
        """Decide on a redelivered message; None if the application may see it.

        If no failed attempt was at this very message (`tried_here`), it is delivered however often
        its entry was redelivered: it may be a healthy sibling of a poison message. It is
        dead-lettered when it fails.
        """
        if tried_here and self._used_up(failed):
            return DeadLetter("redelivered too often")
        return None

    def is_last(self, failed: int) -> bool:
        """Return True if one more failure dead-letters the message."""
        return self._used_up(failed + 1)

    def _used_up(self, failed: int) -> bool:
        return self.max_redeliver_count is not None and used_up(failed, self.max_redeliver_count)
