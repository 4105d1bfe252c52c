"""A stream: micro-batches, one behind the other.

Owns `PulsarStreamReader`, which PySpark calls: all but `read` in one process beside the driver,
which lives as long as the query; `read` in tasks. PySpark calls `commit` one batch late, and not at
all for the last one; but the `start` that it hands to `latestOffset` is in the checkpoint, so that
is acked. It does not call `stop` when a query is stopped: the process gets SIGTERM, and gives back
what it holds then.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from ...errors import ConfigurationError
from ..compat import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from ..offsets import offset_json, read_offset, slicing_text
from ..plain_errors import plain_errors
from ..range_planner import Slicing
from ..reader.range_fetch import ReadRange
from ..reader.task import read_range
from ..reader.values.value_plan import ValuePlan
from ..runtime import Runtime, runtime
from ..source_options import ReadOptions
from .query_progress import QueryProgress
from .task_ranges import slicing_of

_END_S: Final = 10.0


class PulsarStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what is published, in micro-batches.

    Args:
        options: Of the read.
        schema: Of the rows, checked.
        plan: How values are decoded.
    """

    def __init__(self, options: ReadOptions, schema: StructType, plan: ValuePlan) -> None:
        self._options = options
        self._schema = schema
        self._plan_of_values = plan
        self._made: QueryProgress | None = None
        # The end of the last batch that was planned here, for PySpark before 4.2. It may ask for
        # the initial offset of a query that goes on elsewhere, so that one says nothing.
        self._followed: dict[str, Any] | None = None
        self._is_unchecked = False

    def __getstate__(self) -> dict[str, Any]:
        """What a task needs, in another process."""
        return {**self.__dict__, "_made": None}

    # Beside the driver

    @property
    def _here(self) -> Runtime:
        return runtime()

    def _progress(self) -> QueryProgress:
        if self._made is None:
            client = self._here.client(self._options.connection)

            async def make() -> QueryProgress:
                return QueryProgress(client, self._options)

            self._made = self._here.call(make(), "begin a query")
            self._end_with_process()
        return self._made

    def _end_with_process(self) -> None:
        """Give the subscription back on SIGTERM, which is how Spark stops this process."""
        if threading.current_thread() is not threading.main_thread():
            return
        before = signal.getsignal(signal.SIGTERM)

        def on_term(number: int, frame: Any) -> None:
            signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)
            try:
                self.stop()
            finally:  # brokers that do not answer keep no process alive
                os.kill(os.getpid(), signal.SIGTERM)

        signal.signal(signal.SIGTERM, on_term)

    @plain_errors()
    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins.

        Raises:
            ConfigurationError: An option does not fit what is there.
            TransportError: The brokers could not be asked.
        """
        return offset_json(self._here.call(self._progress().initial(), "begin a query"))

    def getDefaultReadLimit(self) -> ReadLimit:
        """One that says that there are limits; which they are, the options say."""
        return ReadMaxRows(1) if self._limited else ReadAllAvailable()

    @property
    def _limited(self) -> bool:
        limits = self._options.limits
        return limits.any or limits.min_rows is not None

    @plain_errors()
    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """The end of the next batch.

        Args:
            start: That of the last one, which is in the checkpoint. None before PySpark 4.2, which
                does not say it: then it is the end of the last batch that was planned here.
            limit: `ReadAllAvailable` is for everything; any other for what the options say.

        Raises:
            DataLossError: Messages that were to be read are gone.
            TransportError: The brokers could not be asked.
        """
        start = self._followed if start is None else start
        if start is None:
            return self._first_after_restart()
        limited = self._limited and not isinstance(limit, ReadAllAvailable)
        begin, progress = read_offset(start), self._progress()
        work = progress.latest(begin, limited=limited)
        end = self._here.call(work, "ask for the end of the topics")
        # Offsets that differ are a batch to Spark, though there be nothing in it.
        slicing = slicing_text(start) if end == begin else self._slicing(progress)
        return offset_json(end, slicing)

    def _first_after_restart(self) -> dict[str, Any]:
        """Return the end of a batch whose beginning is only known when it is planned."""
        self._is_unchecked = True
        progress = self._progress()
        ends = self._here.call(progress.ends(), "ask for the end of the topics")
        return offset_json(ends, self._slicing(progress))

    def _slicing(self, progress: QueryProgress) -> str:
        slicing = slicing_of(self._options, progress.cluster.per_entry.values())
        return "" if slicing == Slicing() else str(slicing)

    @plain_errors()
    def prepareForTriggerAvailableNow(self) -> None:
        """What is stored now is all that is read."""
        self._here.call(self._progress().freeze(), "ask for the end of the topics")

    @plain_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The ranges of a batch; a batch that is done again gets the same messages."""
        begin, stop = read_offset(start), read_offset(end)
        try:
            slicing = Slicing.read(slicing_text(end))
        except ValueError as error:
            raise ConfigurationError(
                f"the checkpoint says {slicing_text(end)!r} of how a batch is cut into tasks, "
                "which this release cannot read: run the release that wrote it"
            ) from error
        self._followed = end
        if self._is_unchecked:
            self._is_unchecked = False
            self._here.call(self._progress().check(begin, stop), "plan a batch")
        work = self._progress().ranges(begin, stop, slicing)
        return list(self._here.call(work, "plan a batch"))

    @plain_errors()
    def commit(self, end: dict[str, Any]) -> None:
        """A batch is in the checkpoint; what cannot be acked now is acked with the next one."""
        self._here.call(self._progress().commit(read_offset(end)), "ack a batch")

    def stop(self) -> None:
        """Give back what is held; the subscription stays, unless the options say otherwise."""
        made, self._made = self._made, None
        if made is not None:
            self._here.call(made.close(), "end a query", _END_S)

    # In tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range; see `reading.task.read_range`."""
        assert isinstance(partition, ReadRange)
        with plain_errors():
            yield from read_range(self._options, self._schema, self._plan_of_values, partition)
