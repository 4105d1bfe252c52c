"""The ranges of a batch's tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...values.topic_names import partition_of
from ..batch_plan import TopicRange
from ..reader.range_fetch import ReadRange
from ..source_options import ReadOptions
from ..task_split import Slicing, split, tasks_by_topic


def slicing_of(options: ReadOptions, per_entry: Iterable[float]) -> Slicing:
    """Convert `maxRecordsPerPartition` into entries by the largest mean in `per_entry`."""
    max_entries = 0
    if options.max_records is not None:
        max_entries = max(1, int(options.max_records / max(1.0, *per_entry, 1.0)))
    return Slicing(options.min_partitions or 1, max_entries, options.split == "ledger")


def ranges_of(topic_ranges: Mapping[str, TopicRange], slicing: Slicing) -> list[ReadRange]:
    entries = {
        topic: sum(each.entries for each in topic_range.ledger_ranges() or ())
        for topic, topic_range in topic_ranges.items()
        if not topic_range.empty
    }
    ranges = []
    for topic, tasks in tasks_by_topic(entries, slicing.min_tasks, slicing.max_entries).items():
        for start, end in split(topic_ranges[topic], tasks, by_ledger=slicing.by_ledger):
            closed_ledgers = tuple(
                (each.id, each.entries - 1)
                for each in topic_ranges[topic].ledgers
                if start.ledger <= each.id <= end.ledger and each.closed and each.entries
            )
            ranges.append(ReadRange(topic, partition_of(topic), start, end, closed_ledgers))
    return ranges
