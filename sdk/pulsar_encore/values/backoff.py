"""Delays that grow with the redelivery count. Pure: the caller gives count and random source."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Any, Final, TypeAlias

from ..errors import ConfigurationError

_MIN_REPORT_INTERVAL_S: Final = 1.0
_MAX_REPORT_INTERVAL_S: Final = 300.0
_MAX_MS: Final = 100 * 365 * 86_400_000  # sums with a clock stay within 64 bits


class FailureReports:
    """Failures in a row of a retried action, and when to report them.

    The time between reports doubles, from 1 s to 5 minutes, so that a lasting failure does not fill
    the log. `since_s` is the time of the first failure, None for the first call.
    """

    def __init__(self, since_s: float | None = None) -> None:
        self.attempts: int = 0
        self._since_s = since_s
        self._due_s = -math.inf

    def failed(self, now_s: float, *, is_news: bool = False) -> bool:
        """Count a failure; return True if it should be reported, as news always are."""
        self.attempts += 1
        elapsed_s = self.elapsed_s(now_s)
        if now_s < self._due_s and not is_news:
            return False
        self._due_s = now_s + min(_MAX_REPORT_INTERVAL_S, max(_MIN_REPORT_INTERVAL_S, elapsed_s))
        return True

    def elapsed_s(self, now_s: float) -> float:
        if self._since_s is None:
            self._since_s = now_s
        return now_s - self._since_s


def seconds_of(value: float | timedelta, name: str) -> float:
    """Return seconds or a timedelta as seconds, of any sign; ConfigurationError names `name`."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ConfigurationError(f"{name} is too large: it must fit a float") from None
    raise ConfigurationError(f"{name} must be seconds or a timedelta, got {type(value).__name__}")


def to_ms(value: float | timedelta, name: str) -> int:
    """Return seconds or a timedelta as milliseconds; ConfigurationError names `name`."""
    seconds = seconds_of(value, name)
    if not math.isfinite(seconds) or seconds < 0:
        raise ConfigurationError(f"{name} must be a finite delay of 0 s or more, got {value!r}")
    return round(seconds * 1000)


@dataclass(frozen=True, kw_only=True, slots=True)
class Backoff:
    """Exponential delay by redelivery count, as Java's MultiplierRedeliveryBackoff (PIP-106).

    Args:
        min_delay: Delay of the first redelivery. Seconds or timedelta.
        max_delay: No delay is longer. Seconds or timedelta.
        multiplier: Growth per redelivery, more than 1.
        jitter: Share of each delay, 0 to 1, that is taken off at random, so that messages that
            failed together do not return together. Never below `min_delay`.

    Raises:
        ConfigurationError: if a value is out of range, or `max_delay` is over 100 years. The text
            names it.
    """

    min_delay: float | timedelta = 10.0
    max_delay: float | timedelta = 600.0
    multiplier: float = 2.0
    jitter: float = 0.0

    def __post_init__(self) -> None:
        low = to_ms(self.min_delay, "Backoff.min_delay")
        high = to_ms(self.max_delay, "Backoff.max_delay")
        if high < low:
            raise ConfigurationError("Backoff.max_delay must be at least Backoff.min_delay")
        _check_longest(high, "Backoff.max_delay", self.max_delay)
        for name in ("multiplier", "jitter"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ConfigurationError(
                    f"Backoff.{name} must be a number, got {type(value).__name__}"
                )
        if not 1 < self.multiplier < math.inf:
            raise ConfigurationError("Backoff.multiplier must be more than 1 and finite")
        if not 0 <= self.jitter <= 1:
            raise ConfigurationError("Backoff.jitter must be from 0 to 1")

    def delay_ms(self, redelivery_count: int, rng: Random) -> int:
        """Return the delay in ms before the next delivery of a message.

        Args:
            redelivery_count: Redeliveries so far; 0 after the first delivery.
            rng: Source of the jitter.
        """
        low = to_ms(self.min_delay, "Backoff.min_delay")
        high = to_ms(self.max_delay, "Backoff.max_delay")
        if redelivery_count <= 0 or low == 0:
            delay = low
        elif redelivery_count > math.log(high / low) / math.log(self.multiplier) + 1:
            delay = high  # before the power overflows a float
        else:
            delay = int(min(high, low * self.multiplier**redelivery_count))
        if self.jitter:
            delay = max(low, delay - int(delay * self.jitter * rng.random()))
        return delay


@dataclass(frozen=True, slots=True)
class BackoffTable:
    """Delays listed by attempt; the last delay repeats.

    Wherever an option takes a `Backoff`, it also takes a list or tuple of delays and makes a
    `BackoffTable` of it.

    Args:
        delays: Seconds or timedeltas, one for each failed attempt in turn. At least one.

    Raises:
        ConfigurationError: if the table is empty or is not a list or tuple, or if a delay is
            negative, over 100 years or not a number. The text names the place in the table.

    Example:
        RocketMQ revives an expired message after these delays (RIP-73)::

            negative_ack_redelivery_backoff=[
                10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200
            ]
    """

    delays: Sequence[float | timedelta]

    def __post_init__(self) -> None:
        object.__setattr__(self, "delays", _checked_delays(self.delays, "BackoffTable.delays"))

    def delay_ms(self, redelivery_count: int, rng: Random) -> int:
        """Return the delay in ms before the next delivery of a message.

        Args:
            redelivery_count: Redeliveries so far; 0 after the first delivery.
            rng: Not used: a table has no jitter.
        """
        at = min(max(redelivery_count, 0), len(self.delays) - 1)
        return to_ms(self.delays[at], "delay")


BackoffLike: TypeAlias = Backoff | BackoffTable | Sequence[float | timedelta]
"""A value that an option for a backoff takes; see `backoff_of`."""


def backoff_of(value: BackoffLike | None, name: str) -> Backoff | BackoffTable | None:
    """Return the backoff that the option `name` names, None for None."""
    if value is None or isinstance(value, (Backoff, BackoffTable)):
        return value
    return BackoffTable(_checked_delays(value, name))


def _checked_delays(value: Any, name: str) -> tuple[float | timedelta, ...]:
    if not isinstance(value, (list, tuple)):
        raise ConfigurationError(
            f"{name} must be a Backoff, or a list of delays by attempt such as [10, 60, 600] (s), "
            f"got {type(value).__name__}"
        )
    if not value:
        raise ConfigurationError(f"{name} must list at least one delay, such as [10, 60, 600] (s)")
    for at, delay in enumerate(value):
        _check_longest(to_ms(delay, f"{name}[{at}]"), f"{name}[{at}]", delay)
    return tuple(value)


def _check_longest(delay_ms: int, name: str, given: float | timedelta) -> None:
    if delay_ms > _MAX_MS:
        raise ConfigurationError(f"{name} must be at most 100 years, got {given!r}")
