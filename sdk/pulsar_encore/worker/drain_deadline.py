"""The time budget of a drain."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

SETTLEMENT_S: Final = 3.0
"""The part of the budget for the steps after the handlers: ack flush, receipts, letters, close."""


class DrainDeadline:
    """When the drain of one worker began, and how much of its budget is left for each step.

    The budget runs from the signal (or the call of `stop`) to the return of `run`. Handlers get the
    budget minus 3 s. The close gets the last second of these 3 s, so that it follows the flush of
    acks even if the broker is away. A budget under 3 s is for the steps after the handlers alone.

    Args:
        budget_s: The whole budget, in s.
        now: The clock in s, such as `loop.time`.
        on_begin: Called with the end of the budget, a time of this clock, when the drain begins.
    """

    __slots__ = ("_began_at", "_now", "_on_begin", "budget_s")

    def __init__(
        self,
        budget_s: float,
        now: Callable[[], float],
        on_begin: Callable[[float], object] | None = None,
    ) -> None:
        self.budget_s: float = budget_s
        self._now = now
        self._on_begin = on_begin
        self._began_at: float | None = None

    def __repr__(self) -> str:
        left = f"{self.left_s():.3g} s left" if self.has_begun else "not begun"
        return f"<DrainDeadline of {self.budget_s:g} s, {left}>"

    def begin(self, at: float | None = None) -> None:
        """Begin the drain now, or at an earlier time. Later calls change nothing."""
        if self._began_at is None:
            self._began_at = self._now() if at is None else at
            if self._on_begin is not None:
                self._on_begin(self._began_at + self.budget_s)

    @property
    def has_begun(self) -> bool:
        return self._began_at is not None

    def handlers_left_s(self) -> float:
        """Return how long handlers may go on, in s: at least 0, and infinite before the drain."""
        return self._left_s(min(SETTLEMENT_S, self.budget_s))

    def flush_left_s(self) -> float:
        """Return the time until the close must begin, in s, for acks, receipts and letters."""
        return self._left_s(min(SETTLEMENT_S, self.budget_s) / 3)

    def left_s(self) -> float:
        """Return the time until `run` must have returned, in s."""
        return self._left_s(0.0)

    def _left_s(self, reserve_s: float) -> float:
        if self._began_at is None:
            return math.inf
        return max(0.0, self._began_at + self.budget_s - reserve_s - self._now())
