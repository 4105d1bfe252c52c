"""The delays of retry letters by attempt, and the parser of the option `backoff`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random
from typing import Final

from ..errors import ConfigurationError
from ..values.backoff import Backoff
from .option_parsers import duration_ms

_FORMS: Final = 'delays by attempt such as "1s,10s,1m", or "exp(min,max,multiplier,jitter)"'
_GROWING: Final = re.compile(r"exp\((.*)\)", re.IGNORECASE)
MAX_MS: Final = 100 * 365 * 86_400_000  # sums with the wall clock stay within 64 bits


@dataclass(frozen=True, slots=True)
class RetryDelays:
    """A list of delays, of which the last is repeated, or a growing delay."""

    listed_ms: tuple[int, ...] = (1_000, 10_000, 60_000)
    growing: Backoff | None = None

    def ms(self, attempt: int, rng: Random) -> int:
        """Return the delay after a failed attempt. Attempts count from 1."""
        if self.growing is not None:
            return self.growing.delay_ms(attempt - 1, rng)
        return self.listed_ms[min(attempt, len(self.listed_ms)) - 1]


def retry_delays(value: str, name: str) -> RetryDelays:
    """Parse a list of delays or ``exp(min,max,multiplier,jitter)``. A bare number is in seconds."""
    parse = duration_ms("s")
    growing = _GROWING.fullmatch(value.strip())
    if growing is None:
        # PySpark writes the Python list of `.option("backoff", [10, 60])` with its brackets.
        value = value.strip()
        if value.startswith(("[", "(")) and value.endswith(("]", ")")):
            value = value[1:-1].rstrip(", ")
        listed = tuple(_bounded(parse(each, name), name) for each in value.split(","))
        return RetryDelays(listed)
    given = [each.strip() for each in growing[1].split(",")]
    if not 2 <= len(given) <= 4:
        raise ConfigurationError(f"{name} must be {_FORMS}, got {value!r}")
    low, high = (_bounded(parse(each, name), name) / 1000 for each in given[:2])
    try:
        multiplier = float(given[2]) if len(given) > 2 else 2.0
        jitter = float(given[3]) if len(given) > 3 else 0.0
        rule = Backoff(min_delay=low, max_delay=high, multiplier=multiplier, jitter=jitter)
    except ValueError as error:  # also Backoff's own
        raise ConfigurationError(f"{name} must be {_FORMS}, got {value!r}: {error}") from error
    return RetryDelays((), rule)


def _bounded(delay_ms: int, name: str) -> int:
    if delay_ms > MAX_MS:
        raise ConfigurationError(f"{name}: no delay may be over 100 years")
    return delay_ms
