"""Streaming reads in micro-batches.

PySpark calls `read` in the tasks, and all other methods in one process beside the driver, which
lives as long as the query. It calls `commit` one batch late, and never for the last batch. The
`start` of `latestOffset` is already in the checkpoint, however, and can be acked. PySpark does not
call `stop` when a query is stopped: the process gets SIGTERM.
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
from ..reader.range_fetch import ReadRange
from ..reader.task import read_range
from ..reader.values.value_plan import ValuePlan
from ..runtime import runtime
from ..source_options import ReadOptions
from ..task_split import Slicing
from .query_progress import QueryProgress
from .task_ranges import slicing_of

_STOP_TIMEOUT_S: Final = 10.0


class PulsarStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, schema: StructType, plan: ValuePlan) -> None:
        self._options = options
        self._schema = schema
        self._value_plan = plan
        self._open_progress: QueryProgress | None = None
        # For PySpark before 4.2. The initial offset cannot stand in for it: PySpark may request the
        # initial offset of a query that continues from a checkpoint.
        self._last_planned_end: dict[str, Any] | None = None
        self._needs_check = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open_progress": None}

    def _progress(self) -> QueryProgress:
        if self._open_progress is None:
            client = runtime().client(self._options.connection)

            async def make() -> QueryProgress:
                return QueryProgress(client, self._options)

            self._open_progress = runtime().call(make(), "begin a query")
            self._end_with_process()
        return self._open_progress

    def _end_with_process(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        previous_handler = signal.getsignal(signal.SIGTERM)

        def on_term(number: int, frame: Any) -> None:
            signal.signal(
                signal.SIGTERM, previous_handler if previous_handler is not None else signal.SIG_DFL
            )
            try:
                self.stop()
            finally:  # even if no broker answers
                os.kill(os.getpid(), signal.SIGTERM)

        signal.signal(signal.SIGTERM, on_term)

    @plain_errors()
    def initialOffset(self) -> dict[str, Any]:
        return offset_json(runtime().call(self._progress().initial(), "begin a query"))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return a limit that only says whether limits apply; the options hold the figures."""
        return ReadMaxRows(1) if self._has_limits else ReadAllAvailable()

    @property
    def _has_limits(self) -> bool:
        return self._options.limits.need_counts

    @plain_errors()
    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return the end of the next batch.

        Args:
            start: The end of the last batch, which is in the checkpoint. PySpark before 4.2 does
                not pass it.
            limit: `ReadAllAvailable` for all stored messages. Any other value means the limits in
                the options.
        """
        start = self._last_planned_end if start is None else start
        if start is None:
            return self._first_after_restart()
        limited = self._has_limits and not isinstance(limit, ReadAllAvailable)
        begin, progress = read_offset(start), self._progress()
        work = progress.latest(begin, limited=limited)
        end = runtime().call(work, "ask for the end of the topics")
        # Spark runs a batch whenever the offset differs, so an empty batch keeps the old slicing.
        slicing = slicing_text(start) if end == begin else self._slicing(progress)
        return offset_json(end, slicing)

    def _first_after_restart(self) -> dict[str, Any]:
        """Return the end of a batch before its start is known; `partitions` checks it."""
        self._needs_check = True
        progress = self._progress()
        ends = runtime().call(progress.ends(), "ask for the end of the topics")
        return offset_json(ends, self._slicing(progress))

    def _slicing(self, progress: QueryProgress) -> str:
        slicing = slicing_of(self._options, progress.cluster.per_entry.values())
        return "" if slicing == Slicing() else str(slicing)

    @plain_errors()
    def prepareForTriggerAvailableNow(self) -> None:
        runtime().call(self._progress().freeze(), "ask for the end of the topics")

    @plain_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begin, stop = read_offset(start), read_offset(end)
        try:
            slicing = Slicing.read(slicing_text(end))
        except ValueError as error:
            raise ConfigurationError(
                f"the checkpoint says {slicing_text(end)!r} for how a batch is split into tasks, "
                "which this release cannot read: run the release that wrote it"
            ) from error
        self._last_planned_end = end
        if self._needs_check:
            self._needs_check = False
            runtime().call(self._progress().check(begin, stop), "plan a batch")
        work = self._progress().ranges(begin, stop, slicing)
        return list(runtime().call(work, "plan a batch"))

    @plain_errors()
    def commit(self, end: dict[str, Any]) -> None:
        runtime().call(self._progress().commit(read_offset(end)), "ack a batch")

    def stop(self) -> None:
        progress, self._open_progress = self._open_progress, None
        if progress is not None:
            runtime().call(progress.close(), "end a query", _STOP_TIMEOUT_S)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ReadRange)
        with plain_errors():
            yield from read_range(self._options, self._schema, self._value_plan, partition)
