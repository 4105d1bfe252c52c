"""The split of a batch into the ranges of its tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from .batch_plan import EntrySpan, TopicRange
from .offsets import Position


class Slicing(NamedTuple):
    """How a batch is split into tasks.

    A repeated batch must be split in the same way, because rows are numbered by their index in
    their task. The slicing is therefore part of the offset.

    Attributes:
        parts: Minimum number of tasks, if there are as many entries.
        max_entries: Maximum number of entries per task; 0 for no limit.
        by_ledger: Split only between ledgers.
    """

    parts: int = 1
    max_entries: int = 0
    by_ledger: bool = False

    def __str__(self) -> str:
        return f"{self.parts}:{self.max_entries}:{'ledger' if self.by_ledger else 'entry'}"

    @classmethod
    def read(cls, text: str) -> Slicing:
        """Parse the text of a slicing; the default for "". Raises ValueError for other texts."""
        if not text:
            return cls()
        parts, max_entries, unit = text.split(":")
        if unit not in ("ledger", "entry"):
            raise ValueError(f"split by {unit!r}")
        return cls(int(parts), int(max_entries), unit == "ledger")


def split(
    span: EntrySpan, parts: int, *, by_ledger: bool = False
) -> list[tuple[Position, Position]]:
    """Split a span into at most `parts` ranges with nearly equal numbers of entries.

    Return the start (exclusive) and end of each range. A span with few entries, or entries that
    cannot be counted, gives fewer ranges.
    """
    if span.empty:
        return []
    ranges = span.ranges()
    if parts <= 1 or not ranges:
        return [(span.start, span.end)]
    total = sum(each.entries for each in ranges)
    bounds: list[Position] = []
    taken = 0
    for at, entry_range in enumerate(ranges):
        if by_ledger:
            if at and taken * parts >= total * (len(bounds) + 1):
                bounds.append(Position(ranges[at - 1].ledger, ranges[at - 1].last))
        else:
            bounds += _bounds_within(entry_range, taken, total, parts, len(bounds))
        taken += entry_range.entries
    edges = [span.start, *(bound for bound in bounds if bound.order < span.end.order), span.end]
    return [(start, end) for start, end in pairwise(edges) if start.order < end.order]


def _bounds_within(
    entry_range: TopicRange, taken: int, total: int, parts: int, made: int
) -> Iterator[Position]:
    for number in range(made + 1, parts):
        goal = -(-total * number // parts)  # entries in the first `number` parts
        if goal <= taken:
            continue
        if goal > taken + entry_range.entries:
            return
        last = entry_range.first + goal - taken - 1
        yield Position(entry_range.ledger, last)


def shared_parts(entries: Mapping[str, int], parts: int, max_entries: int = 0) -> dict[str, int]:
    """Return the number of tasks by topic; `parts` and `max_entries` are as in `Slicing`.

    A topic with entries that cannot be counted has 0 in `entries`, and gets one task.
    """
    shared = dict.fromkeys(entries, 1)
    total = sum(entries.values())
    if total and parts > len(entries):
        for topic, count in entries.items():
            shared[topic] = max(1, round(parts * count / total))
        # Rounding may give fewer than `parts`, which is a minimum.
        while sum(shared.values()) < parts:
            topic = max(sorted(entries), key=lambda each: entries[each] / shared[each])
            if entries[topic] <= shared[topic]:
                break
            shared[topic] += 1
    if max_entries:
        for topic, count in entries.items():
            shared[topic] = max(shared[topic], -(-count // max_entries))
    return {topic: min(shared[topic], max(1, count)) for topic, count in entries.items()}
