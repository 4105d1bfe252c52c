"""What is to be written together, and what could not be written yet: a small map before the disk.

Owns `WriteBatch`. Ranges are removed before points are written, so a point put into a range is
newer than it: removing a range drops the points that are in it. Invariant: applied twice it is as
applied once, so what was perhaps written may be written again. Refuses to know a database.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection
from itertools import islice
from typing import Final, TypeAlias

DUE: Final = 0
STATE: Final = 1
META: Final = 2
FAMILIES: Final = ("due", "state", "meta")

Span: TypeAlias = tuple[bytes, bytes]
"""From a key up to another."""


class WriteBatch:
    """Puts and deletes of three column families, the newest of a key alone.

    Attributes:
        points: For each family, by key: the value, or None for a delete.
        ranges: For each family, what is removed before that: by where it begins, up to where.
    """

    __slots__ = ("points", "ranges")

    def __init__(self) -> None:
        self.points: tuple[dict[bytes, bytes | None], ...] = ({}, {}, {})
        self.ranges: tuple[dict[bytes, bytes], ...] = ({}, {}, {})

    def __len__(self) -> int:
        due, state, meta = self.points
        dues, states, metas = self.ranges
        return len(due) + len(state) + len(meta) + len(dues) + len(states) + len(metas)

    def __bool__(self) -> bool:
        due, state, meta = self.points
        dues, states, metas = self.ranges
        return bool(due or state or meta or dues or states or metas)

    def put(self, family: int, key: bytes, value: bytes) -> None:
        """Write a key."""
        self.points[family][key] = value

    def delete(self, family: int, key: bytes) -> None:
        """Remove a key, if it is there."""
        self.points[family][key] = None

    def delete_range(self, family: int, start: bytes, stop: bytes) -> None:
        """Remove all keys from `start` up to `stop`, what was put before into this included."""
        self.delete_ranges(family, ((start, stop),))

    def delete_ranges(self, family: int, spans: Collection[Span]) -> None:
        """The same of several; what was put before is looked through once for all of them."""
        self.drop(family, spans)
        ranges = self.ranges[family]
        for start, stop in spans:
            ranges[start] = max(stop, ranges.get(start, stop))

    def drop(self, family: int, spans: Collection[Span]) -> None:
        """Say nothing of the keys in any of the spans."""
        points = self.points[family]
        if not points or not spans:
            return
        starts: list[bytes] = []
        stops: list[bytes] = []
        for start, stop in sorted(spans):
            if starts and start <= stops[-1]:
                stops[-1] = max(stops[-1], stop)
            else:
                starts.append(start)
                stops.append(stop)
        for key in [
            key for key in points if (at := bisect_right(starts, key)) and key < stops[at - 1]
        ]:
            del points[key]

    def find(self, family: int, key: bytes) -> tuple[bool, bytes | None]:
        """Whether a key is written or removed here, and its value."""
        points = self.points[family]
        if key in points:
            return True, points[key]
        return any(start <= key < stop for start, stop in self.ranges[family].items()), None

    def merge(self, newer: WriteBatch) -> None:
        """Have what was written later here as well."""
        for family, ranges in enumerate(newer.ranges):
            if ranges:
                self.delete_ranges(family, ranges.items())
        for mine, theirs in zip(self.points, newer.points, strict=True):
            mine.update(theirs)

    def first(self, limit: int) -> WriteBatch:
        """Up to `limit` of it, the longest there first; points only once no range is left."""
        part = WriteBatch()
        for spans, some in zip(self.ranges, part.ranges, strict=True):
            some.update(islice(spans.items(), limit - len(part)))
        for points, few in zip(self.points, part.points, strict=True):
            few.update(islice(points.items(), limit - len(part)))
        return part

    def forget(self, part: WriteBatch) -> None:
        """Say nothing any more of what `first` gave."""
        for spans, some in zip(self.ranges, part.ranges, strict=True):
            for start in some:
                del spans[start]
        for points, few in zip(self.points, part.points, strict=True):
            for key in few:
                del points[key]

    def drop_newest(self, count: int) -> int:
        """Say nothing of so many points, those put last; returns how many there were."""
        dropped = 0
        for points in self.points:
            while points and dropped < count:
                points.popitem()
                dropped += 1
        return dropped
