"""What becomes of a message that failed: it waits here, on the retry-letter topic, or is dead.

Owns `Verdicts`: decided, not done. One limit for both paths (`letters.counting.used_up`): a message
is handed out `max_redeliver_count` + 1 times, and then it is a dead letter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from ..letters.reconsume_counts import used_up


class Wait(NamedTuple):
    """It waits here for so long, and is redelivered."""

    delay_ms: int


class SendToRetryTopic(NamedTuple):
    """It waits on the retry-letter topic for so long: here it would fill the broker's unacked
    window, or may outlive this process."""

    delay_ms: int


class DeadLetter(NamedTuple):
    """Its attempts are used up."""

    reason: str


Verdict: TypeAlias = Wait | SendToRetryTopic | DeadLetter


@dataclass(frozen=True, slots=True)
class WindowOverflow:
    """When nacks wait on the retry-letter topic.

    Attributes:
        longest_ms: What waits for longer never waits here.
        most_nacked: Messages that may wait here.
    """

    longest_ms: int
    most_nacked: float


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The rules of one consumer.

    Attributes:
        delay_of: Delay in ms of a nack that names none, by the attempts that failed before.
        max_redeliver_count: Of the dead-letter policy; None without one.
        overflow: None where nacks wait here whatever comes.
        revive_delay: Delay in ms of an expired lease, by the attempts that failed before; None
            where an expired lease is redelivered at once.
    """

    delay_of: Callable[[int], int]
    max_redeliver_count: int | None = None
    overflow: WindowOverflow | None = None
    revive_delay: Callable[[int], int] | None = None

    @property
    def revives_later(self) -> bool:
        """Whether the message of an expired lease waits for a backoff."""
        return self.revive_delay is not None

    def revive_delay_of(self, failed: int) -> int:
        """Delay in ms of an expired lease whose message had failed so often before."""
        return 0 if self.revive_delay is None else self.revive_delay(failed)

    def on_nack(self, failed: int, delay_ms: int | None, nacked: int) -> Verdict:
        """A message that the application holds failed.

        Args:
            failed: Attempts at it that failed before.
            delay_ms: That the nack names, or None.
            nacked: Messages of the consumer that wait here.
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
        """A message came back, that failed so often; None when the application may see it.

        Args:
            failed: Attempts at it that failed.
            tried_here: One of them was at this very message, not only at a sibling of its batch.
                If none was, the message is handed out, however often its entry was redelivered: it
                may be a healthy sibling of a poison message. It is dead-lettered when it fails.
        """
        if tried_here and self._used_up(failed):
            return DeadLetter("redelivered too often")
        return None

    def is_last(self, failed: int) -> bool:
        """True if a message that failed so often is dead-lettered when it fails once more."""
        return self._used_up(failed + 1)

    def _used_up(self, failed: int) -> bool:
        return self.max_redeliver_count is not None and used_up(failed, self.max_redeliver_count)
