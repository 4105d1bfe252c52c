"""The state of a worker for a readiness probe, and its counts at the end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class LongHandler:
    """A handler that has been running for more than 5 minutes.

    Attributes:
        message: The message, as text.
        running: Seconds since its start.
    """

    message: str
    running: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """The state of a worker at one moment.

    Attributes:
        ready: False while the worker starts or drains, after its end, while the reject limit is
            reached, and while it can take no more messages. A lost connection, an open breaker and
            `pause` leave it ready: a probe that fails for them stops a rollout in an outage.
        reasons: Why it is not ready, or what holds it up although it is ready, as sentences.
        state: "starting", "running", "paused", "draining", "ended" or "failed".
        connected: True if the consumer is connected to its broker.
        running: Number of handlers that run now.
        waiting: Messages that failed and wait in this process until the time of their next attempt,
            or, after a trial by the breaker or the reject limit, until the trials end.
        blocked: Messages that wait for an earlier message of their key or partition.
        held_keys: Examples of keys or partitions that wait for a failed message, up to 10, once
            10,000 messages are held back, or fill `max_bytes`.
        long_handlers: Handlers that have been running for more than 5 minutes.
        stuck_handlers: Handlers that still run 5 s after their cancellation, or were left behind.
    """

    ready: bool
    reasons: tuple[str, ...]
    state: str
    connected: bool = False
    running: int = 0
    waiting: int = 0
    blocked: int = 0
    held_keys: tuple[str, ...] = ()
    long_handlers: tuple[LongHandler, ...] = ()
    stuck_handlers: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The counts of a worker since its start.

    Attributes:
        name: Name of the worker.
        received: Messages that the worker took.
        succeeded: Messages whose handler returned, unless it nacked or rejected the message itself.
        failed: Handler calls that raised an error or took too long.
        retried: Failures and nacks that were followed by another attempt, or will be.
        rejected: Messages that were dead-lettered.
        discarded: Messages that were acked without success, with `dead_letters=False`.
        published: Messages that handlers published.
        lost: Messages that another consumer took over while they were here, or whose transaction
            was aborted after their acks had left. The latter come again.
        given_back: Unfinished messages that the drain gave back to the broker, without counting an
            attempt.
        abandoned: Handlers that ignored their cancellation.
    """

    name: str
    received: int = 0
    succeeded: int = 0
    failed: int = 0
    retried: int = 0
    rejected: int = 0
    discarded: int = 0
    published: int = 0
    lost: int = 0
    given_back: int = 0
    abandoned: int = 0
