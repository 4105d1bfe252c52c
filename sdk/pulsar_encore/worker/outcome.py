"""The outcome of one handler call, for tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ..message import Message
from .outbox import Outgoing
from .worker_core import Ack, DeadLetter, Discard, Hold, Nack, RetryLetter

Settlement: TypeAlias = Literal["ack", "retry", "dead letter", "discard", "settled", "lost"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a worker did with a message after a handler call.

    Attributes:
        message: The message.
        attempt: Number of this attempt, from 1.
        settlement: "ack", "retry" (another attempt follows), "dead letter", "discard" (acked
            without success, with `dead_letters=False`), "settled" (the handler settled or detached
            the message itself) or "lost" (another consumer has the message).
        delay: Seconds until the next attempt; None without one.
        counted: True if the attempt counts. Only a retry can be uncounted.
        reason: Why the message was dead-lettered or discarded; "" otherwise.
        error: The error of the handler, or a `TimeoutError`; None if it returned.
        published: Messages that the handler published.
    """

    message: Message[Any]
    attempt: int
    settlement: Settlement
    delay: float | None = None
    counted: bool = True
    reason: str = ""
    error: BaseException | None = None
    published: tuple[Outgoing, ...] = ()


def outcome_of(
    message: Message[Any],
    attempt: int,
    action: Any,
    error: BaseException | None,
    published: tuple[Outgoing, ...],
    now_ms: int,
) -> Outcome:
    """Return the outcome of an action of the core; None stands for a settled message."""
    settlement: Settlement = "settled"
    delay: float | None = None
    counted, reason = True, ""
    match action:
        case Ack():
            settlement = "ack"
        case Hold(due_ms=due_ms, counted=counted):
            settlement, delay = "retry", (due_ms - now_ms) / 1000
        case Nack(delay_ms=delay_ms) | RetryLetter(delay_ms=delay_ms):
            settlement, delay = "retry", delay_ms / 1000
        case DeadLetter(reason=reason):
            settlement = "dead letter"
        case Discard(reason=reason):
            settlement = "discard"
    return Outcome(
        message=message,
        attempt=attempt,
        settlement=settlement,
        delay=delay,
        counted=counted,
        reason=reason,
        error=error,
        published=published,
    )
