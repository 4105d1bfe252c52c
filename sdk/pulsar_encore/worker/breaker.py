"""`Breaker`: stop starting messages while a dependency of the handler is away. Pure.

`BreakerState` gets the ends of handler calls and says when the next probe may start. It knows no
messages; the worker's core chooses them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from ..errors import ConfigurationError
from ..options.checks import integer, seconds
from .retry_policy import Reject, Retry, causes_of, exception_kinds

_LONGEST_PAUSE_MS: Final = 300_000
_MAX_FAILURES: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Breaker:
    """When a worker stops because a dependency is away, and how it finds out that it is back.

    The breaker opens after `failures` failures of the kinds `on` in a row, without a success
    between them. While it is open, the worker takes no messages and keeps the messages that it
    holds. After each pause one message is tried, a different message each time. If that call
    succeeds, the breaker closes. If it fails, the pause doubles, up to 5 minutes.

    A failure of these kinds uses up an attempt only if another message was processed since the
    message failed in this way before. An outage therefore costs no attempts, and a message that
    fails while others are processed is dead-lettered in the end.

    Args:
        on: Exception classes that mean that a dependency is away. An exception group counts if all
            its exceptions do.
        failures: Failures in a row that open the breaker. At least 1.
        within: The failures in a row must be within this time. Seconds or timedelta; None for no
            bound, so that the breaker also opens if there are few messages.
        pause: Time before the first probe. Seconds or timedelta.

    Raises:
        ConfigurationError: if a value is out of range or has a wrong type. The text names it.

    Example:
        ```python
        breaker = pulsar_encore.Breaker(on=(ConnectionError, TimeoutError))
        ```
    """

    on: type[Exception] | tuple[type[Exception], ...]
    failures: int = 5
    within: float | timedelta | None = None
    pause: float | timedelta = 30
    kinds: tuple[type[Exception], ...] = field(init=False, repr=False, compare=False)
    within_ms: int | None = field(init=False, repr=False, compare=False)
    pause_ms: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        kinds = exception_kinds(self.on, "Breaker.on")
        if not kinds:
            raise ConfigurationError(
                "Breaker.on must name at least one exception class, such as "
                "(ConnectionError, TimeoutError), got an empty tuple. For no breaker, use "
                "breaker=None"
            )
        for each in kinds:
            if issubclass(each, (Retry, Reject)):
                raise ConfigurationError(
                    f"Breaker.on must not contain {each.__name__}: Retry and Reject are answers of "
                    "the handler, not failures of a dependency"
                )
        integer(self.failures, "Breaker.failures", low=1, high=_MAX_FAILURES)
        within = None if self.within is None else seconds(self.within, "Breaker.within")
        pause = seconds(self.pause, "Breaker.pause")
        object.__setattr__(self, "kinds", kinds)
        object.__setattr__(self, "within_ms", None if within is None else round(within * 1000))
        object.__setattr__(self, "pause_ms", round(pause * 1000))

    def matches(self, error: BaseException) -> bool:
        """Return True if an error, or each error of a group, is of the breaker's kinds."""
        if isinstance(error, self.kinds):
            return True
        return isinstance(error, BaseExceptionGroup) and all(
            isinstance(each, self.kinds) for each in causes_of(error)
        )


class BreakerState:
    """The state of one breaker.

    Attributes:
        is_open: True if only probes may start.
        due_ms: Earliest start of the next probe, while it is open.
        pause_ms: The present pause; it doubles with each failed probe.
        error: The latest failure of the breaker's kinds.
    """

    def __init__(self, options: Breaker) -> None:
        self.options: Breaker = options
        self.is_open: bool = False
        self.due_ms: int = 0
        self.pause_ms: int = options.pause_ms
        self.error: BaseException | None = None
        self._pause_end_ms = 0  # of the pause after the latest failure
        self._failed_ms: deque[int] = deque(maxlen=options.failures)

    @property
    def failures_in_row(self) -> int:
        """Failures without a success between, at most `Breaker.failures`."""
        return len(self._failed_ms)

    def probe_started(self, now_ms: int) -> None:
        # A probe that hangs does not keep the breaker open for ever: the next probe may start after
        # another pause.
        self.due_ms = now_ms + self.pause_ms

    def succeeded(self, *, was_probe: bool) -> None:
        """Note a success. While the breaker is open, only a probe closes it.

        Other calls began before the outage, and may have had their answer before it.
        """
        if was_probe or not self.is_open:
            self.is_open = False
            self._failed_ms.clear()
            self.pause_ms = self.options.pause_ms
            self.error = None

    def failed(self, error: BaseException, now_ms: int, *, was_probe: bool) -> None:
        """Note a failure of the breaker's kinds."""
        self.error = error
        if self.is_open:
            if was_probe:
                self.pause_ms = max(self.pause_ms, min(2 * self.pause_ms, _LONGEST_PAUSE_MS))
                self.due_ms = self._pause_end_ms = now_ms + self.pause_ms
            return
        failed_ms, within_ms = self._failed_ms, self.options.within_ms
        failed_ms.append(now_ms)
        if len(failed_ms) == self.options.failures and (
            within_ms is None or now_ms - failed_ms[0] <= within_ms
        ):
            self.is_open = True
            self.due_ms = self._pause_end_ms = now_ms + self.pause_ms

    def probe_said_nothing(self, now_ms: int) -> None:
        """Allow another probe at once: the last probe ended for a reason of its own message.

        If a second probe has failed meanwhile, its pause goes on.
        """
        if self.is_open:
            self.due_ms = max(now_ms, self._pause_end_ms)
