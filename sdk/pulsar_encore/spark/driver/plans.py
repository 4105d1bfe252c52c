"""Spans of topics as the ranges of tasks."""

from __future__ import annotations

from collections.abc import Mapping

from ..options import ReadOptions
from ..planning import Span, shared_parts, split
from ..reading.ranges import ReadRange


def ranges_of(
    spans: Mapping[str, Span], numbers: Mapping[str, int], options: ReadOptions
) -> list[ReadRange]:
    """The ranges of a batch: the same for the same spans.

    Args:
        spans: By full name of a topic or partition.
        numbers: Their partition numbers; -1 without.
        options: Of the read.
    """
    entries = {
        topic: sum(each.entries for each in span.stretches() or ())
        for topic, span in spans.items()
        if not span.empty
    }
    ranges = []
    for topic, parts in shared_parts(
        entries, options.min_partitions or 1, _most_entries(spans, options)
    ).items():
        for start, end in split(spans[topic], parts, by_ledger=options.split == "ledger"):
            passed = tuple(
                (each.id, each.entries - 1)
                for each in spans[topic].ledgers
                if start.ledger <= each.id <= end.ledger and each.closed and each.entries
            )
            ranges.append(ReadRange(topic, numbers.get(topic, -1), start, end, passed))
    return ranges


def _most_entries(spans: Mapping[str, Span], options: ReadOptions) -> int | None:
    """`maxRecordsPerPartition` in entries, by the largest average."""
    if options.max_records is None:
        return None
    largest = max((span.per_entry for span in spans.values()), default=1.0)
    return max(1, int(options.max_records / max(1.0, largest)))
