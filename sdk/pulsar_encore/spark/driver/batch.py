"""Batch reads of the messages that are stored when the batch is planned.

PySpark calls `partitions` in the driver and `read` in the tasks. `NarrowedBatchReader` is a class
of its own because PySpark rejects a reader with `pushFilters` unless
`spark.sql.python.filterPushdown.enabled` is true, and its default is false.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ...values.topic_names import base_name
from ..batch_plan import TopicRange, may_be_gone
from ..compat import Filter
from ..filter_pushdown import Narrowing, narrowing_of
from ..offsets import EARLIEST, Position, later
from ..plain_errors import plain_errors
from ..reader.range_fetch import ReadRange
from ..reader.task import read_range
from ..reader.values.value_plan import ValuePlan
from ..runtime import runtime
from ..source_options import ReadOptions, edge_position
from ..spark_errors import DataLossError
from .cluster import Cluster
from .read_bounds import begin_of, check_topics, countable, end_of, gone_text
from .task_ranges import ranges_of, slicing_of

log: Final = logging.getLogger("pulsar_encore.spark")


class PulsarBatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: StructType, plan: ValuePlan) -> None:
        self._options = options
        self._schema = schema
        self._value_plan = plan
        self._narrowing = Narrowing()

    @plain_errors()
    def partitions(self) -> list[InputPartition]:
        process_runtime = runtime()
        client = process_runtime.client(self._options.connection)

        async def plan() -> list[ReadRange]:
            cluster = Cluster(client, self._options)
            try:
                return await cluster.with_retries(lambda: self._plan(cluster), "plan a batch")
            finally:
                await cluster.close()

        return list(process_runtime.call(plan(), "plan a batch"))

    async def _plan(self, cluster: Cluster) -> list[ReadRange]:
        options = self._options
        numbers = await cluster.topics()
        check_topics(options.start, "startingOffsets", numbers)
        check_topics(options.end, "endingOffsets", numbers)
        narrowing = self._narrowing
        numbers = {topic: each for topic, each in numbers.items() if narrowing.keeps(topic, each)}
        last = await cluster.last(numbers)
        begin: dict[str, Position] = {}
        end: dict[str, Position] = {}
        for topic, position in last.items():
            if position == EARLIEST:
                continue
            begin[topic] = await begin_of(cluster, options, topic, position)
            if options.min_partitions is not None or options.max_records is not None:
                begin[topic] = await countable(cluster, topic, begin[topic])
            end[topic] = await end_of(cluster, options, topic, position)
        ledgers = await cluster.ledgers(begin)
        for topic, stored in ledgers.items():
            if may_be_gone(begin[topic], stored, None):
                self._report_loss(gone_text(topic, begin[topic], stored[0].id, sure=False))
        topic_ranges: dict[str, TopicRange] = {}
        # Topics whose end or start may not be a stored entry: an option or a filter set it.
        unstored_ends: set[str] = set()
        narrowed_starts: set[str] = set()
        for topic, start in begin.items():
            topic_ledgers = ledgers.get(topic, ())
            first, stop = narrowing.span(start, later(start, end[topic]), topic_ledgers)
            edge = edge_position(options.end, topic, base_name(topic))
            if stop != later(start, end[topic]) or (
                isinstance(edge, Position) and stop != last[topic]
            ):
                unstored_ends.add(topic)
            if first != start:
                narrowed_starts.add(topic)
            per_entry = cluster.per_entry.get(topic, 1.0)
            topic_ranges[topic] = TopicRange(first, later(first, stop), topic_ledgers, per_entry)
        slicing = slicing_of(options, (each.per_entry for each in topic_ranges.values()))
        return [
            replace(
                each,
                is_end_stored=each.topic not in unstored_ends,
                is_start_retained=each.topic in narrowed_starts,
            )
            for each in ranges_of(topic_ranges, slicing)
        ]

    def _report_loss(self, text: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{text}. Set failOnDataLoss=false to read the remaining messages")
        log.warning("%s; the remaining messages are read because failOnDataLoss=false", text)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # PySpark passes another object if there are no ranges.
        if not isinstance(partition, ReadRange):
            return
        with plain_errors():
            yield from read_range(self._options, self._schema, self._value_plan, partition)


class NarrowedBatchReader(PulsarBatchReader):
    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        """Note the filters, and return all of them, so that Spark applies them as well."""
        shape = self._options.shape
        names = {shape.prefix + each.key: each.key for each in shape.columns}
        self._narrowing = narrowing_of(filters, names)
        return filters
