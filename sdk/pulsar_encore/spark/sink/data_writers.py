"""The writers of batches and streams that PySpark calls, and the work of a task.

A failed task leaves nothing that could still be sent, and its next attempt sends all of its rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ...client import transport_of
from ...errors import ConfigurationError, EncoreError, TopicNotFound
from ...values.topic_names import full_name
from ..compat import DataSourceStreamArrowWriter
from ..option_table import PRODUCE
from ..plain_errors import plain_errors
from ..runtime import runtime
from .letter_copies import AttemptTimes, copy_rule
from .row_batches import CopiedRows, ProducedRows, RowChunk, RowMessages
from .row_sender import RowSender
from .row_spool import RowSpool
from .sequence_ids import SequenceIds, numbering_of
from .sink_columns import ColumnLayout, check_keys, layout_of
from .sink_options import SinkOptions, sink_options
from .value_encoder import encoder_of

if TYPE_CHECKING:
    import pyarrow as pa

log: Final = logging.getLogger("pulsar_encore.spark")

_ABORT_TIMEOUT_S: Final = 15.0


@dataclass
class SinkCommit(WriterCommitMessage):
    """The number of rows that a task stored, their number by topic, and their payloads in bytes."""

    rows: int = 0
    size: int = 0
    topics: dict[str, int] = field(default_factory=dict)


def batch_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceArrowWriter:
    """Return the writer of ``df.write.format("pulsar")``."""
    if overwrite:
        raise ConfigurationError(
            'a topic cannot be overwritten: write with mode("append"), and delete or truncate it '
            "with Pulsar's admin tools before"
        )
    return _BatchWriter(*_checked(options, schema, streaming=False))


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """Return the writer of ``df.writeStream.format("pulsar")``."""
    if overwrite:
        raise ConfigurationError(
            'outputMode("complete") would overwrite the topic with each micro-batch, which Pulsar '
            'cannot: use outputMode("append"), or "update" with the group\'s key in __key'
        )
    return _StreamWriter(*_checked(options, schema, streaming=True))


def check_reachable(given: Mapping[str, str]) -> None:
    """Look up the topic of a batch that is about to be written, if the options name one.

    A wrong URL or login would otherwise fail in each attempt of the tasks, after the whole
    operation timeout. The batches of a stream wait for brokers that restart.
    """
    options = sink_options(given, streaming=False)
    if options.topic is None:
        return
    process_runtime = runtime()
    transport = transport_of(process_runtime.client(options.connection))
    try:
        process_runtime.call(
            transport.topic_partitions(full_name(options.topic), create=False), "look for the topic"
        )
    except TopicNotFound:
        pass  # the broker may create the topic on the first write


def _checked(
    given: Mapping[str, str], schema: StructType, *, streaming: bool
) -> tuple[SinkOptions, ColumnLayout]:
    options = sink_options(given, streaming=streaming)
    if options.publishing.keys is not None:
        options.publishing.keys.check()
    layout = layout_of(schema, options)
    check_keys(schema, layout, options)
    if options.value_format != "raw":
        encoder_of(options.value_format, layout.values, options.value_schema)
    return options, layout


class _BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: SinkOptions, layout: ColumnLayout) -> None:
        self._options = options
        self._layout = layout

    @plain_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommit:
        return write_rows(self._options, self._layout, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _log_outcome(messages, "stored")

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _log_outcome(messages, "failed; tasks that did not had stored")


class _StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions, layout: ColumnLayout) -> None:
        self._options = options
        self._layout = layout

    @plain_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommit:
        publishing = self._options.publishing
        numbering = None
        if publishing.sequenced:
            assert publishing.name is not None  # checked with the options
            numbering = numbering_of(TaskContext.get(), publishing.name)
        return write_rows(self._options, self._layout, iterator, numbering)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _log_outcome(messages, f"stored micro-batch {batchId}:")

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _log_outcome(messages, f"failed in micro-batch {batchId}; tasks that did not had stored")


def _log_outcome(messages: Sequence[WriterCommitMessage | None], outcome: str) -> None:
    commits = [each for each in messages if isinstance(each, SinkCommit)]
    rows, size = sum(each.rows for each in commits), sum(each.size for each in commits)
    log.debug(
        "the pulsar sink %s %d rows of %d bytes in %d tasks", outcome, rows, size, len(commits)
    )


def write_rows(
    options: SinkOptions,
    layout: ColumnLayout,
    batches: Iterator[pa.RecordBatch],
    numbering: SequenceIds | None = None,
) -> SinkCommit:
    """Publish the rows of a task; without rows, no connection is opened."""
    task: _Task | None = None
    try:
        for batch in batches:
            if batch.num_rows:
                if task is None:
                    task = _Task(options, layout, numbering)
                task.add(batch)
        return SinkCommit() if task is None else task.finish()
    except BaseException:
        if task is not None:
            task.abort()
        raise


class _Task:
    def __init__(
        self, options: SinkOptions, layout: ColumnLayout, numbering: SequenceIds | None
    ) -> None:
        self._runtime = runtime()
        client = self._runtime.client(options.connection)
        self._rows: RowMessages
        if options.mode == PRODUCE:
            self._rows = ProducedRows(layout, options)
        else:
            binary_keys = transport_of(client).capabilities.binary_keys
            refuse = not (binary_keys or options.text_keys)
            rule = copy_rule(options, refuse_byte_keys=refuse, rng=Random())
            self._rows = CopiedRows(layout, options, rule)
        self._numbering = numbering
        self._spool: RowSpool | None = None
        if numbering is not None:
            self._spool = RowSpool(self._read, copies=options.mode != PRODUCE)
        self._sender = RowSender(client, options)
        self._commit = SinkCommit()

    def add(self, batch: pa.RecordBatch) -> None:
        if self._spool is not None:
            self._spool.add(batch)
        else:
            self._publish(self._read(batch, self._commit.rows))

    def _read(self, batch: pa.RecordBatch, first: int) -> RowChunk:
        now_ns = time.time_ns()
        times = AttemptTimes(now_ns // 1_000_000, -(-now_ns // 1_000_000))
        return self._rows.read(batch, first, times)

    def _publish(self, chunk: RowChunk) -> None:
        self._runtime.call(self._sender.publish(chunk), "publish rows")
        self._commit.rows += len(chunk.messages)
        self._commit.size += chunk.size

    def finish(self) -> SinkCommit:
        if self._spool is not None and self._numbering is not None:
            self._sender.number(self._numbering._replace(digest=self._spool.digest))
            for chunk in self._spool.take():
                self._publish(chunk)
        self._runtime.call(self._sender.finish(), "store rows")
        self._commit.topics = dict(self._sender.topics)
        return self._commit

    def abort(self) -> None:
        if self._spool is not None:
            self._spool.close()
        try:
            self._runtime.call(self._sender.abort(), "discard rows", _ABORT_TIMEOUT_S)
        except EncoreError as error:  # must not replace the error of the task
            log.warning("the pulsar sink gave up a task, and its producers stay open: %s", error)
