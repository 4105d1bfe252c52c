"""Which consumer a key belongs to: the hash and the two Key_Shared layouts.

Owns nothing but arithmetic. The constants are the protocol's (wire-protocol.md 5.1): a key goes
to the same consumer here and on Pulsar, or an ordering test against one proves nothing about the
other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from .refusal import Refusal

AUTO_SPLIT_RANGE = 65_535
STICKY_RANGE = 65_536
RING_POINTS = 100

Range = tuple[int, int]


class Named(Protocol):
    """What the layouts need of a consumer."""

    name: str
    ranges: Sequence[Range]


C = TypeVar("C", bound=Named)


def murmur3(data: bytes) -> int:
    """MurmurHash3 x86 32 bit, seed 0, sign bit cleared."""
    h = 0
    end = len(data) & ~3
    for at in range(0, end, 4):
        k = int.from_bytes(data[at : at + 4], "little") * 0xCC9E2D51 & 0xFFFFFFFF
        k = (k << 15 | k >> 17) * 0x1B873593 & 0xFFFFFFFF
        h ^= k
        h = ((h << 13 | h >> 19) & 0xFFFFFFFF) * 5 + 0xE6546B64 & 0xFFFFFFFF
    if end < len(data):
        k = int.from_bytes(data[end:], "little") * 0xCC9E2D51 & 0xFFFFFFFF
        h ^= (k << 15 | k >> 17) * 0x1B873593 & 0xFFFFFFFF
    h ^= len(data)
    h = (h ^ h >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    h = (h ^ h >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return (h ^ h >> 16) & 0x7FFFFFFF


class AutoSplit(Generic[C]):
    """A ring of points per consumer; a key goes to the first point at or after its hash."""

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
        """The place of a murmur3 hash on this layout."""
        return key_hash % AUTO_SPLIT_RANGE + 1

    def owner(self, slot: int) -> C | None:
        """The consumer of one slot; None when there are no consumers."""
        if not self._owners:
            return None
        at = bisect_left(self._points, slot)
        return self._owners[at if at < len(self._owners) else 0]


class Sticky(Generic[C]):
    """Ranges that the consumers declared; a slot nobody declared has no owner."""

    def __init__(self, consumers: Sequence[C]) -> None:
        spans = sorted(
            (start, end, at)
            for at, consumer in enumerate(consumers)
            for start, end in consumer.ranges
        )
        self._starts = [start for start, _, _ in spans]
        self._spans = [(end, consumers[at]) for _, end, at in spans]

    @staticmethod
    def slot(key_hash: int) -> int:
        """The place of a murmur3 hash on this layout; 0 is not used."""
        return key_hash % STICKY_RANGE or 1

    def owner(self, slot: int) -> C | None:
        """The consumer whose range holds the slot."""
        at = bisect_left(self._starts, slot + 1) - 1
        if at < 0:
            return None
        end, consumer = self._spans[at]
        return consumer if slot <= end else None


def check_ranges(new: Sequence[Range], taken: Sequence[Range]) -> None:
    """Refuse ranges that are empty, out of bounds or overlap.

    Raises:
        Refusal: ConsumerAssignError.
    """
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
    """Which of `names` a hash ring gives `key` to (Failover on a topic without partitions)."""
    points = {
        murmur3(f"{name}{i}".encode()): at
        for at, name in enumerate(names)
        for i in range(RING_POINTS)
    }
    ordered = sorted(points)
    at = bisect_left(ordered, murmur3(key.encode()))
    return points[ordered[at if at < len(ordered) else 0]]
