"""The sink as a data source that can be slowed down, so that a kill hits it during a write."""

from __future__ import annotations

import time
from collections.abc import Iterator, MutableMapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pulsar_encore.spark.compat import DataSourceStreamArrowWriter
from pulsar_encore.spark.sink import batch_writer, stream_writer


class Sink(DataSource):
    """``format("sink")``. Its option `pauseMs` is a pause before each record batch."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.sink_options = dict(options)
        self.pause_s = int(self.sink_options.pop("pausems", "0")) / 1000

    @classmethod
    def name(cls) -> str:
        return "sink"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return batch_writer(self.sink_options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return SlowWriter(stream_writer(self.sink_options, schema, overwrite), self.pause_s)


class SlowWriter(DataSourceStreamArrowWriter):
    """Another writer with a pause before each record batch."""

    def __init__(self, writer: DataSourceStreamArrowWriter, pause_s: float) -> None:
        self.writer = writer
        self.pause_s = pause_s

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        def paused() -> Iterator[pa.RecordBatch]:
            for batch in iterator:
                time.sleep(self.pause_s)
                yield batch

        return self.writer.write(paused())

    def commit(self, messages: Any, batchId: int) -> None:
        self.writer.commit(messages, batchId)

    def abort(self, messages: Any, batchId: int) -> None:
        self.writer.abort(messages, batchId)
