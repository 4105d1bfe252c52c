"""What is to be written together, and what could not be written yet: a small map before the disk.

Owns `Writes`. Ranges are removed before points are written, so a point put into a range is newer
than it: removing a range drops the points that are in it. Invariant: applied twice it is as applied
once, so what was perhaps written may be written again. Refuses to know a database.
"""

from __future__ import annotations

from typing import Final

DUE: Final = 0
STATE: Final = 1
META: Final = 2
FAMILIES: Final = ("due", "state", "meta")


class Writes:
    """Puts and deletes of three column families, the newest of a key alone.

    Attributes:
        points: For each family, by key: the value, or None for a delete.
        ranges: (family, from, up to) of what is removed before that.
    """

    __slots__ = ("points", "ranges")

    def __init__(self) -> None:
        self.points: tuple[dict[bytes, bytes | None], ...] = ({}, {}, {})
        self.ranges: list[tuple[int, bytes, bytes]] = []

    def __len__(self) -> int:
        due, state, meta = self.points
        return len(due) + len(state) + len(meta) + len(self.ranges)

    def put(self, family: int, key: bytes, value: bytes) -> None:
        """Write a key."""
        self.points[family][key] = value

    def delete(self, family: int, key: bytes) -> None:
        """Remove a key, if it is there."""
        self.points[family][key] = None

    def delete_range(self, family: int, start: bytes, stop: bytes) -> None:
        """Remove all keys from `start` up to `stop`, what was put before into this included."""
        self.drop(family, start, stop)
        self.ranges.append((family, start, stop))

    def drop(self, family: int, start: bytes, stop: bytes) -> None:
        """Say nothing of the keys from `start` up to `stop`."""
        points = self.points[family]
        if points:
            for key in [key for key in points if start <= key < stop]:
                del points[key]

    def find(self, family: int, key: bytes) -> tuple[bool, bytes | None]:
        """Whether a key is written or removed here, and its value."""
        points = self.points[family]
        if key in points:
            return True, points[key]
        return any(f == family and a <= key < b for f, a, b in self.ranges), None

    def merge(self, newer: Writes) -> None:
        """Have what was written later here as well."""
        for each in newer.ranges:
            self.delete_range(*each)
        for mine, theirs in zip(self.points, newer.points, strict=True):
            mine.update(theirs)

    def take(self, limit: int) -> Writes:
        """The ranges and, up to `limit`, points; they are not here any more."""
        taken = Writes()
        taken.ranges, self.ranges = self.ranges, []
        for mine, theirs in zip(self.points, taken.points, strict=True):
            for key in list(mine)[: max(limit - len(taken), 0)]:
                theirs[key] = mine.pop(key)
        return taken

    def drop_newest(self, count: int) -> int:
        """Say nothing of so many points, those put last; returns how many there were."""
        dropped = 0
        for points in self.points:
            while points and dropped < count:
                points.popitem()
                dropped += 1
        return dropped
