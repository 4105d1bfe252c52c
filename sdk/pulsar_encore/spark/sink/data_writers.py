"""The writers of batches and streams that PySpark calls, and the work of a task.

A failed task leaves nothing that could still be sent, and its next attempt sends all of its rows.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ...client import Client, transport_of
from ...errors import ConfigurationError, EncoreError, TopicNotFound
from ...values.topic_names import full_name
from ..compat import DataSourceStreamArrowWriter
from ..option_table import PRODUCE
from ..plain_errors import plain_errors
from ..runtime import runtime
from .attempt_transaction import AttemptTransaction
from .batch_commits import BatchCommits
from .commit_journal import BatchKey, SharedTransaction, TaskTransaction
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

T = TypeVar("T")

_ABORT_TIMEOUT_S: Final = 15.0


@dataclass
class SinkCommit(WriterCommitMessage):
    """The number of rows that a task stored, their number by topic, and their payloads in bytes.

    With transactions also the batch, and the task's transaction if it had rows. With a transaction
    that the tasks share also that one, and the name of this attempt if it had rows.
    """

    rows: int = 0
    size: int = 0
    topics: dict[str, int] = field(default_factory=dict)
    batch: BatchKey | None = None
    transaction: TaskTransaction | None = None
    shared: SharedTransaction | None = None
    attempt: str = ""


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
        self._key: BatchKey | None = None
        self._shared: SharedTransaction | None = None
        if options.transactions is not None:
            # PySpark pickles this writer for the tasks and for the commit.
            self._key = key = BatchKey(f"write-{uuid.uuid4().hex}", 0)
            self._shared = _call(
                options, lambda commits: commits.begin_write(key), "begin a transactional write"
            )

    @plain_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommit:
        return write_rows(
            self._options, self._layout, iterator, batch=self._key, shared=self._shared
        )

    @plain_errors()
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self._key is not None:
            _commit(self._options, self._key, messages, self._shared)
        _log_outcome(messages, "stored")

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self._key is not None:
            _abort(self._options, self._key, self._shared)
        _log_outcome(messages, "failed; tasks that did not had stored")


class _StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions, layout: ColumnLayout) -> None:
        self._options = options
        self._layout = layout
        self._committed: BatchKey | None = None
        self._shared: SharedTransaction | None = None
        if options.transactions is not None:
            # PySpark makes a writer before each micro-batch, and pickles it for the tasks. It makes
            # another for the commit, where this finds nothing to do. A writer cannot know which of
            # the two it is, so the one for the commit also begins a shared transaction, and ends it
            # unused.
            self._committed, self._shared = _call(
                options, lambda commits: commits.recover(), "read the journal of the query"
            )

    @plain_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommit:
        if self._options.transactions is not None:
            return self._write_batch(iterator)
        publishing = self._options.publishing
        numbering = None
        if publishing.sequenced:
            assert publishing.name is not None  # checked with the options
            numbering = numbering_of(TaskContext.get(), publishing.name)
        return write_rows(self._options, self._layout, iterator, numbering)

    def _write_batch(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommit:
        """Write rows of a micro-batch in a transaction, or none if the batch is committed."""
        key = _micro_batch_of(TaskContext.get())
        committed = self._committed
        if committed is not None and key.query == committed.query and key.batch <= committed.batch:
            for _ in iterator:
                pass  # Spark would report a broken pipe
            return SinkCommit(batch=key, shared=self._shared)
        return write_rows(self._options, self._layout, iterator, batch=key, shared=self._shared)

    @plain_errors()
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        key = _batch_of(messages)
        try:
            if key is not None:
                _commit(self._options, key, messages, _shared_of(messages))
        finally:
            self._discard_unused(messages)
        _log_outcome(messages, f"stored micro-batch {batchId}:")

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        if self._options.transactions is not None:
            _abort(self._options, _batch_of(messages), _shared_of(messages))
            self._discard_unused(messages)
        _log_outcome(messages, f"failed in micro-batch {batchId}; tasks that did not had stored")

    def _discard_unused(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort the shared transaction that this writer began, if no task has it."""
        shared = self._shared
        if shared is None or shared == _shared_of(messages):
            return
        try:
            _call(self._options, lambda commits: commits.discard(shared), "abort a transaction")
        except EncoreError as error:  # must not replace the outcome of the batch
            log.warning("transaction %s is open until its timeout: %s", shared.txn, error)


def _micro_batch_of(task: TaskContext | None) -> BatchKey:
    query = batch = None
    if task is not None:
        query = task.getLocalProperty("sql.streaming.queryId")
        batch = task.getLocalProperty("streaming.sql.batchId")
    if not query or not batch:
        raise ConfigurationError(
            "transactional: Spark does not tell the task its query and its micro-batch"
        )
    return BatchKey(query, int(batch))


def _batch_of(messages: Sequence[WriterCommitMessage | None]) -> BatchKey | None:
    found = (each.batch for each in messages if isinstance(each, SinkCommit))
    return next((each for each in found if each is not None), None)


def _shared_of(messages: Sequence[WriterCommitMessage | None]) -> SharedTransaction | None:
    found = (each.shared for each in messages if isinstance(each, SinkCommit))
    return next((each for each in found if each is not None), None)


def _call(
    options: SinkOptions, work: Callable[[BatchCommits], Coroutine[Any, Any, T]], doing: str
) -> T:
    """Do the driver's part of a transactional write."""
    assert options.transactions is not None  # checked by the caller
    process_runtime = runtime()
    client = process_runtime.client(options.connection)
    return process_runtime.call(work(BatchCommits(client, options.transactions)), doing)


def _commit(
    options: SinkOptions,
    key: BatchKey,
    messages: Sequence[WriterCommitMessage | None],
    shared: SharedTransaction | None,
) -> None:
    tasks, attempts = [], {}
    for each in messages:
        if isinstance(each, SinkCommit) and each.transaction is not None:
            tasks.append(each.transaction)
            attempts[each.transaction.partition] = each.attempt
    _call(options, lambda commits: commits.commit(key, tasks, shared, attempts), f"commit {key}")


def _abort(options: SinkOptions, key: BatchKey | None, shared: SharedTransaction | None) -> None:
    try:
        _call(options, lambda commits: commits.abort(key, shared), "abort a batch")
    except EncoreError as error:  # must not replace the error of the batch
        log.warning("transactions of the batch are open until their timeout: %s", error)


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
    batch: BatchKey | None = None,
    shared: SharedTransaction | None = None,
) -> SinkCommit:
    """Publish the rows of a task; without rows, no connection is opened.

    Args:
        numbering: The numbers of the rows, or None.
        batch: With transactions, the batch of the rows.
        shared: The transaction of the whole batch, if its tasks share one.
    """
    task: _Task | None = None
    try:
        for rows in batches:
            if rows.num_rows:
                if task is None:
                    task = _Task(options, layout, numbering, batch, shared)
                task.add(rows)
        return SinkCommit(batch=batch, shared=shared) if task is None else task.finish()
    except BaseException:
        if task is not None:
            task.abort()
        raise


class _Task:
    def __init__(
        self,
        options: SinkOptions,
        layout: ColumnLayout,
        numbering: SequenceIds | None,
        batch: BatchKey | None,
        shared: SharedTransaction | None,
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
        self._attempt = self._begin(client, options, batch, shared)
        txn = None if self._attempt is None else self._attempt.txn
        self._sender = RowSender(client, options, txn)
        name = "" if self._attempt is None else self._attempt.name
        self._commit = SinkCommit(batch=batch, shared=shared, attempt=name)

    def _begin(
        self,
        client: Client,
        options: SinkOptions,
        batch: BatchKey | None,
        shared: SharedTransaction | None,
    ) -> AttemptTransaction | None:
        if options.transactions is None or batch is None:
            return None
        task = TaskContext.get()
        partition = 0 if task is None else task.partitionId()
        attempt = AttemptTransaction(
            client, options.transactions, options.publishing, batch, partition, shared
        )
        self._runtime.call(attempt.begin(), "begin a transaction")
        return attempt

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
        if self._attempt is not None:
            self._commit.transaction = self._runtime.call(
                self._attempt.finish(), "store the marker of a transaction"
            )
        self._commit.topics = dict(self._sender.topics)
        return self._commit

    def abort(self) -> None:
        if self._spool is not None:
            self._spool.close()
        self._clean_up(self._sender.abort(), "discard rows")
        if self._attempt is not None:
            self._clean_up(self._attempt.abort(), "abort a transaction")

    def _clean_up(self, work: Coroutine[Any, Any, None], doing: str) -> None:
        try:
            self._runtime.call(work, doing, _ABORT_TIMEOUT_S)
        except EncoreError as error:  # must not replace the error of the task
            log.warning("the pulsar sink gave up a task, and its producers stay open: %s", error)
