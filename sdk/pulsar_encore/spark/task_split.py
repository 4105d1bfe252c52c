"""The split of a batch into the ranges of its tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from .batch_plan import LedgerRange, TopicRange
from .offsets import Position


class Slicing(NamedTuple):
    """How a batch is split into tasks.

    A repeated batch must be split in the same way, because rows are numbered by their index in
    their task. The slicing is therefore part of the offset.

    Attributes:
        min_tasks: Minimum number of tasks, if there are as many entries.
        max_entries: Maximum number of entries per task; 0 for no limit.
        by_ledger: Split only between ledgers.
    """

    min_tasks: int = 1
    max_entries: int = 0
    by_ledger: bool = False

    def __str__(self) -> str:
        return f"{self.min_tasks}:{self.max_entries}:{'ledger' if self.by_ledger else 'entry'}"

    @classmethod
    def read(cls, text: str) -> Slicing:
        """Parse the text of a slicing; the default for "". Raises ValueError for other texts."""
        if not text:
            return cls()
        min_tasks, max_entries, unit = text.split(":")
        if unit not in ("ledger", "entry"):
            raise ValueError(f"split by {unit!r}")
        return cls(int(min_tasks), int(max_entries), unit == "ledger")


def split(
    topic_range: TopicRange, max_ranges: int, *, by_ledger: bool = False
) -> list[tuple[Position, Position]]:
    """Split a topic range into at most `max_ranges` ranges with nearly equal numbers of entries.

    Return the start (exclusive) and end of each range. A topic range with few entries, or entries
    that cannot be counted, gives fewer ranges.
    """
    if topic_range.empty:
        return []
    ranges = topic_range.ledger_ranges()
    if max_ranges <= 1 or not ranges:
        return [(topic_range.start, topic_range.end)]
    total = sum(each.entries for each in ranges)
    bounds: list[Position] = []
    taken = 0
    for at, ledger_range in enumerate(ranges):
        if by_ledger:
            if at and taken * max_ranges >= total * (len(bounds) + 1):
                bounds.append(Position(ranges[at - 1].ledger, ranges[at - 1].last))
        else:
            bounds += _bounds_within(ledger_range, taken, total, max_ranges, len(bounds))
        taken += ledger_range.entries
    edges = [
        topic_range.start,
        *(bound for bound in bounds if bound.order < topic_range.end.order),
        topic_range.end,
    ]
    return [(start, end) for start, end in pairwise(edges) if start.order < end.order]


def _bounds_within(
    ledger_range: LedgerRange, taken: int, total: int, max_ranges: int, made: int
) -> Iterator[Position]:
    for number in range(made + 1, max_ranges):
        goal = -(-total * number // max_ranges)  # entries in the first `number` ranges
        if goal <= taken:
            continue
        if goal > taken + ledger_range.entries:
            return
        last = ledger_range.first + goal - taken - 1
        yield Position(ledger_range.ledger, last)


def tasks_by_topic(
    entries: Mapping[str, int], min_tasks: int, max_entries: int = 0
) -> dict[str, int]:
    """Return the number of tasks by topic; `min_tasks` and `max_entries` are as in `Slicing`.

    A topic with entries that cannot be counted has 0 in `entries`, and gets one task.
    """
    tasks = dict.fromkeys(entries, 1)
    total = sum(entries.values())
    if total and min_tasks > len(entries):
        for topic, count in entries.items():
            tasks[topic] = max(1, round(min_tasks * count / total))
        # Rounding may give fewer than `min_tasks`, which is a minimum.
        while sum(tasks.values()) < min_tasks:
            topic = max(sorted(entries), key=lambda each: entries[each] / tasks[each])
            if entries[topic] <= tasks[topic]:
                break
            tasks[topic] += 1
    if max_entries:
        for topic, count in entries.items():
            tasks[topic] = max(tasks[topic], -(-count // max_entries))
    return {topic: min(tasks[topic], max(1, count)) for topic, count in entries.items()}
