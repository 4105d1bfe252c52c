"""Assign keys to consumers: the two Key_Shared layouts, and the hash ring of Failover.

A key goes to the same consumer here and on Pulsar (wire-protocol.md 5.1).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from ...wire.key_hashes import murmur3
from .refusal import Refusal

AUTO_SPLIT_RANGE = 65_535
STICKY_RANGE = 65_536
RING_POINTS = 100

Range = tuple[int, int]


class NamedConsumer(Protocol):
    name: str
    ranges: Sequence[Range]


C = TypeVar("C", bound=NamedConsumer)


class AutoSplit(Generic[C]):
    """A ring of points per consumer. A key belongs to the first point at or after its hash."""

    def __init__(self, consumers: Sequence[C]) -> None:
        points: dict[int, C] = {}
        seen: dict[str, int] = {}
        for consumer in consumers:
            index = seen.get(consumer.name, 0)
            seen[consumer.name] = index + 1
            for i in range(RING_POINTS):
                point = self.slot(murmur3(f"{consumer.name}\0{index}\0{i}".encode()))
                points.setdefault(point, consumer)
        self._points = sorted(points)
        self._owners = [points[point] for point in self._points]

    @staticmethod
    def slot(key_hash: int) -> int:
        return key_hash % AUTO_SPLIT_RANGE + 1

    def owner(self, slot: int) -> C | None:
        if not self._owners:
            return None
        at = bisect_left(self._points, slot)
        return self._owners[at if at < len(self._owners) else 0]


class StickyRanges(Generic[C]):
    """Ranges that the consumers declared. Other slots have no owner."""

    def __init__(self, consumers: Sequence[C]) -> None:
        declared = sorted(
            (start, end, at)
            for at, consumer in enumerate(consumers)
            for start, end in consumer.ranges
        )
        self._starts = [start for start, _, _ in declared]
        self._declared = [(end, consumers[at]) for _, end, at in declared]

    @staticmethod
    def slot(key_hash: int) -> int:
        return key_hash % STICKY_RANGE or 1

    def owner(self, slot: int) -> C | None:
        at = bisect_left(self._starts, slot + 1) - 1
        if at < 0:
            return None
        end, consumer = self._declared[at]
        return consumer if slot <= end else None


def overlap(some: Sequence[Range], others: Sequence[Range]) -> bool:
    return any(a <= d and c <= b for a, b in some for c, d in others)


def check_ranges(new: Sequence[Range], taken: Sequence[Range]) -> None:
    """Refuse ranges that are empty, out of bounds or overlap."""
    if not new:
        raise Refusal("ConsumerAssignError", "a STICKY consumer must declare hash ranges")
    seen = list(taken)
    for start, end in new:
        if not 0 <= start <= end < STICKY_RANGE:
            raise Refusal("ConsumerAssignError", f"hash range {start}..{end} is not in 0..65535")
        for other_start, other_end in seen:
            if start <= other_end and other_start <= end:
                raise Refusal(
                    "ConsumerAssignError",
                    f"hash range {start}..{end} overlaps {other_start}..{other_end}",
                )
        seen.append((start, end))


def ring_index(names: Sequence[str], key: str) -> int:
    """Return the index in `names` that a hash ring assigns to `key`."""
    points = {
        murmur3(f"{name}{i}".encode()): at
        for at, name in enumerate(names)
        for i in range(RING_POINTS)
    }
    ordered = sorted(points)
    at = bisect_left(ordered, murmur3(key.encode()))
    return points[ordered[at if at < len(ordered) else 0]]
