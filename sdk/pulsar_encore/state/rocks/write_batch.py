"""`WriteBatch`: puts and deletes of three column families.

Ranges are deleted before points are written, so a point inside a range is newer. A batch whose
outcome is unknown can be retried: applying it twice has the same effect as once.
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
"""First key, and the key after the last one."""


class WriteBatch:
    """The newest put or delete of each key.

    Attributes:
        points: For each family, values by key; None deletes the key.
        ranges: For each family, ranges to delete first: the end of each (exclusive) by its start.
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
        self.points[family][key] = value

    def delete(self, family: int, key: bytes) -> None:
        self.points[family][key] = None

    def delete_range(self, family: int, start: bytes, stop: bytes) -> None:
        self.delete_ranges(family, ((start, stop),))

    def delete_ranges(self, family: int, spans: Collection[Span]) -> None:
        """Delete several ranges with one pass over the points."""
        self.drop_points(family, spans)
        ranges = self.ranges[family]
        for start, stop in spans:
            ranges[start] = max(stop, ranges.get(start, stop))

    def drop_points(self, family: int, spans: Collection[Span]) -> None:
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
        points = self.points[family]
        if key in points:
            return True, points[key]
        return any(start <= key < stop for start, stop in self.ranges[family].items()), None

    def merge(self, newer: WriteBatch) -> None:
        for family, ranges in enumerate(newer.ranges):
            if ranges:
                self.delete_ranges(family, ranges.items())
        for mine, theirs in zip(self.points, newer.points, strict=True):
            mine.update(theirs)

    def first(self, limit: int) -> WriteBatch:
        """Return up to `limit` operations, the oldest first; points only after all ranges."""
        part = WriteBatch()
        for spans, some in zip(self.ranges, part.ranges, strict=True):
            some.update(islice(spans.items(), limit - len(part)))
        for points, few in zip(self.points, part.points, strict=True):
            few.update(islice(points.items(), limit - len(part)))
        return part

    def remove(self, part: WriteBatch) -> None:
        for spans, some in zip(self.ranges, part.ranges, strict=True):
            for start in some:
                del spans[start]
        for points, few in zip(self.points, part.points, strict=True):
            for key in few:
                del points[key]

    def drop_newest(self, count: int) -> int:
        """Remove up to `count` points, the newest first, and return their number."""
        dropped = 0
        for points in self.points:
            while points and dropped < count:
                points.popitem()
                dropped += 1
        return dropped
