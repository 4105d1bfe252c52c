"""`RetryPolicy`, and the exceptions by which a handler asks for a retry or a dead letter. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from ..errors import ConfigurationError
from ..options.checks import boolean, integer, seconds, topic_name
from ..values.backoff import Backoff, BackoffLike, BackoffTable, backoff_of

_MAX_INT: Final = 2**31 - 1
_FETCH_AGAIN_S: Final = 10.0
_BACKOFF: Final = Backoff(min_delay=1, max_delay=600, jitter=0.2)


class Retry(Exception):
    """Ask a worker to call the handler for this message again later.

    Args:
        delay: Time until the next call. Seconds or timedelta; None for the worker's backoff.
        count: False if this call must not use up an attempt. The message then waits in the worker.

    Raises:
        ConfigurationError: if `delay` is not from 0 to 1e9 s, or if `count` is not a bool.

    Example:
        ```python
        async def bill(order):
            if await gateway.busy():
                raise pulsar_encore.Retry(delay=30, count=False)
            await gateway.charge(order)
        ```
    """

    # Tracebacks, letters and pickles name the module from which users import a class.
    __module__ = "pulsar_encore"

    def __init__(self, delay: float | timedelta | None = None, count: bool = True) -> None:
        super().__init__(delay, count)
        self.delay_ms: int | None = _optional_ms(delay, "Retry.delay")
        self.count: bool = boolean(count, "Retry.count")

    def __str__(self) -> str:
        when = "with backoff" if self.delay_ms is None else f"in {self.delay_ms / 1000:g} s"
        return f"retry {when}" if self.count else f"retry {when}, not counted"


class NoSchema(Retry):
    """The schema version of a message could not be fetched. Its cause is the evidence.

    It counts no attempt, because the message is not to blame.
    """

    def __init__(self) -> None:
        super().__init__(_FETCH_AGAIN_S, count=False)

    def __repr__(self) -> str:
        return repr(self.__cause__)


class Reject(Exception):
    """Ask a worker to dead-letter this message now, without further attempts.

    Args:
        reason: Why the message can never be processed. The dead letter has it as evidence.

    Example:
        ```python
        async def bill(order):
            if order.total < 0:
                raise pulsar_encore.Reject("negative total")
            await gateway.charge(order)
        ```
    """

    __module__ = "pulsar_encore"

    def __init__(self, reason: str | BaseException = "rejected by the handler") -> None:
        super().__init__(reason)


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """When a worker calls the handler again after a failure, and when it gives up.

    Args:
        attempts: Handler calls for one message, the first included. At least 1. The message is
            dead-lettered when the last call fails.
        backoff: Delays between calls: a `Backoff`, or a list of delays such as `[10, 60, 600]` (s).
            The default grows from 1 s to 10 minutes, with a jitter of 0.2.
        letters_after: With `order="none"`, a message with a longer delay goes through the retry
            letter topic, and with a shorter delay it is nacked. Seconds or timedelta; None to use
            no retry letters, as with a topic pattern. With other orders, a message waits in the
            worker.
        max_age: A message that was published longer ago is dead-lettered. Seconds or timedelta;
            None for no limit.
        reject: Exception classes that dead-letter the message at once, as `Reject` does.
        dead_letter_topic: None for `<topic without partition>-<subscription>-DLQ`.
        dead_letters: False to ack and count a message as discarded instead of dead-lettering it.

    Raises:
        ConfigurationError: if a value is out of range or has a wrong type. The text names it.

    Example:
        ```python
        retry = pulsar_encore.RetryPolicy(attempts=4, backoff=[10, 60, 600], reject=(ValueError,))
        ```
    """

    attempts: int = 6
    backoff: BackoffLike = _BACKOFF
    letters_after: float | timedelta | None = 600
    max_age: float | timedelta | None = None
    reject: type[Exception] | tuple[type[Exception], ...] = ()
    dead_letter_topic: str | None = None
    dead_letters: bool = True
    letters_after_ms: int | None = field(init=False, repr=False, compare=False)
    max_age_ms: int | None = field(init=False, repr=False, compare=False)
    delays: Backoff | BackoffTable = field(init=False, repr=False, compare=False)
    reject_kinds: tuple[type[Exception], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        integer(self.attempts, "RetryPolicy.attempts", low=1, high=_MAX_INT, unit="handler calls")
        backoff = backoff_of(self.backoff, "RetryPolicy.backoff")
        if backoff is None:
            raise ConfigurationError(
                "RetryPolicy.backoff must be a Backoff or a list of delays such as [10, 60, 600] "
                "(s), got None. Use [0] to retry without a delay, or attempts=1 for no retries"
            )
        letters_after_ms = _optional_ms(self.letters_after, "RetryPolicy.letters_after")
        max_age_ms = _optional_ms(self.max_age, "RetryPolicy.max_age")
        if max_age_ms == 0:
            raise ConfigurationError(
                f"RetryPolicy.max_age must be more than 0 s, got {self.max_age!r}: every message "
                "would be dead-lettered. Use None for no limit"
            )
        kinds = exception_kinds(self.reject, "RetryPolicy.reject")
        if any(issubclass(each, Retry) for each in kinds):
            raise ConfigurationError(
                "RetryPolicy.reject must not contain Retry, which asks for another attempt"
            )
        if self.dead_letter_topic is not None:
            topic_name(self.dead_letter_topic, "RetryPolicy.dead_letter_topic")
        if not boolean(self.dead_letters, "RetryPolicy.dead_letters") and self.dead_letter_topic:
            raise ConfigurationError(
                f"RetryPolicy.dead_letter_topic={self.dead_letter_topic!r} has no use with "
                "dead_letters=False, which discards messages. Leave one of them out"
            )
        for name, value in (
            ("letters_after_ms", letters_after_ms),
            ("max_age_ms", max_age_ms),
            ("delays", backoff),
            ("reject_kinds", (Reject, *kinds)),
        ):
            object.__setattr__(self, name, value)


def exception_kinds(value: Any, name: str) -> tuple[type[Exception], ...]:
    """Return an exception class, or a tuple or list of them, as a tuple."""
    kinds = value if isinstance(value, (tuple, list)) else (value,)
    for each in kinds:
        if not (isinstance(each, type) and issubclass(each, Exception)):
            raise ConfigurationError(
                f"{name} must be an exception class or a tuple of them, such as "
                f"(ConnectionError, TimeoutError), got {each!r}. Classes must derive from Exception"
            )
    return tuple(kinds)


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions of a group, however deep, or the exception itself.

    A handler that uses `asyncio.TaskGroup` fails with a group of the errors of its tasks.
    """
    pending = [error]
    while pending:
        each = pending.pop()
        if isinstance(each, BaseExceptionGroup):
            pending.extend(reversed(each.exceptions))
        else:
            yield each


def _optional_ms(value: float | timedelta | None, name: str) -> int | None:
    return None if value is None else round(seconds(value, name, low=0) * 1000)
