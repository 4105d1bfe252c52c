"""So many a second and no more, by the event loop's clock."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from ..errors import ConfigurationError


class RateLimit:
    """Spaces steps evenly; what was missed is not made up for in a burst.

    Args:
        rate: Steps a second; None for as fast as it goes.

    Raises:
        ConfigurationError: The rate is not a number above 0.
    """

    def __init__(self, rate: float | None) -> None:
        self._gap_s = 0.0
        self._next = -math.inf
        if rate is not None:
            self._gap_s = 1 / _checked(rate)

    async def step(self) -> None:
        """Wait for the next step's turn."""
        if not self._gap_s:
            return
        now = asyncio.get_running_loop().time()
        if now < self._next:
            await asyncio.sleep(self._next - now)
            now = self._next
        self._next = now + self._gap_s


def _checked(rate: Any) -> float:
    number = isinstance(rate, (int, float)) and not isinstance(rate, bool)
    # A rate so small that a step takes over a month is a mistake, and no timer goes that far.
    if not number or not math.isfinite(rate) or rate < 1e-6:
        raise ConfigurationError(f"rate must be letters a second, above 0, got {rate!r}")
    return float(rate)
