"""Entries that are not yet to be delivered (`deliver_at_time`), with the broker's coarse clock.

Not strict, an entry goes up to one tick early, and one that is due within a tick is not held at
all; strict, it is never early and up to a tick late. The caller asks `wake_ms` when to look
again.
"""

from __future__ import annotations

from heapq import heappop, heappush


class DelayedEntries:
    """Waiting entries by due time.

    Args:
        tick_ms: Grid on which due entries are looked for.
        strict: See the module.
    """

    __slots__ = ("_heap", "_slack_ms", "_strict", "_tick_ms")

    def __init__(self, tick_ms: int, strict: bool) -> None:
        self._tick_ms = max(tick_ms, 1)
        self._strict = strict
        self._slack_ms = 0 if strict else self._tick_ms
        self._heap: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, seq: int, deliver_at_ms: int, wall_now_ms: int) -> bool:
        """Hold an entry back; False when it is to be delivered at once."""
        if deliver_at_ms <= wall_now_ms + self._slack_ms:
            return False
        heappush(self._heap, (deliver_at_ms, seq))
        return True

    def pop_due(self, wall_now_ms: int) -> list[int]:
        """Take out everything that may be delivered now, in order of due time."""
        due = []
        heap = self._heap
        while heap and heap[0][0] <= wall_now_ms + self._slack_ms:
            due.append(heappop(heap)[1])
        return due

    def wake_ms(self) -> int | None:
        """Wall ms at which to look again; None when nothing waits.

        On the tick grid: the first point not before the head when strict, else the nearest one.
        """
        if not self._heap:
            return None
        head = self._heap[0][0]
        shift = self._tick_ms - 1 if self._strict else self._tick_ms // 2
        return (head + shift) // self._tick_ms * self._tick_ms
