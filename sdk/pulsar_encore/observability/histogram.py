"""A histogram and a sum that cost little for each value."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

#: Most values that wait to be counted. They are counted together, because that is cheaper.
_MAX_WAITING: Final = 256


@dataclass(frozen=True, slots=True)
class HistogramValue:
    """A copy of a histogram.

    Attributes:
        counts: Number of values up to each bound, and above the last one. Each value counts once.
        total: Sum of the values.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        return sum(self.counts)


class Histogram:
    """Counts values by bounds. Several event loops in several threads may add to it."""

    __slots__ = ("_bounds", "_counts", "_lock", "_total", "_waiting")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0
        self._lock = threading.Lock()
        # Both ends of a deque can be used from several threads without a lock.
        self._waiting: deque[float] = deque()

    def add(self, value: float) -> None:
        self._waiting.append(value)
        if len(self._waiting) >= _MAX_WAITING:
            with self._lock:
                self._count_waiting()

    def _count_waiting(self) -> None:
        bounds, counts, take = self._bounds, self._counts, self._waiting.popleft
        # Only a thread that has the lock takes values.
        values = sorted([take() for _ in range(len(self._waiting))])
        self._total += sum(values)
        # A step for each bucket that has values costs less than one for each value.
        begin = 0
        while begin < len(values):
            bucket = bisect_left(bounds, values[begin])
            end = len(values)
            if bucket < len(bounds):
                end = bisect_right(values, bounds[bucket], begin)
            counts[bucket] += end - begin
            begin = end

    def value(self) -> HistogramValue:
        with self._lock:
            self._count_waiting()
            return HistogramValue(self._bounds, tuple(self._counts), self._total)


class Cell:
    """A part of a sum, to which one thread adds without a lock."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0
