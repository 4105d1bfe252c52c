"""Entries held back until their `deliver_at_time`, with the broker's coarse timer.

Without `strict`, an entry is delivered up to one tick early. With `strict`, it is never early and
up to a tick late.
"""

from __future__ import annotations

from heapq import heappop, heappush


class DelayedEntries:
    __slots__ = ("_heap", "_slack_ms", "_strict", "_tick_ms")

    def __init__(self, tick_ms: int, strict: bool) -> None:
        self._tick_ms = max(tick_ms, 1)
        self._strict = strict
        self._slack_ms = 0 if strict else self._tick_ms
        self._heap: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, seq: int, deliver_at_ms: int, wall_now_ms: int) -> bool:
        """Hold an entry back; return False if it is due now."""
        if deliver_at_ms <= wall_now_ms + self._slack_ms:
            return False
        heappush(self._heap, (deliver_at_ms, seq))
        return True

    def pop_due(self, wall_now_ms: int) -> list[int]:
        """Remove and return all due entries, in order."""
        due = []
        heap = self._heap
        while heap and heap[0][0] <= wall_now_ms + self._slack_ms:
            due.append(heappop(heap)[1])
        return due

    def wake_ms(self) -> int | None:
        """Return the time of the next check in wall ms; None if no entry waits.

        With `strict` the first tick at or after the due time, otherwise the nearest tick.
        """
        if not self._heap:
            return None
        head = self._heap[0][0]
        shift = self._tick_ms - 1 if self._strict else self._tick_ms // 2
        return (head + shift) // self._tick_ms * self._tick_ms
