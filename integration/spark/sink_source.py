"""The sink as a data source that can be slowed down, so that a kill hits it during a write."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pulsar_encore.spark.compat import DataSourceStreamArrowWriter
from pulsar_encore.spark.sink import batch_writer, stream_writer
from pulsar_encore.spark.sink.batch_commits import BatchCommits


class Sink(DataSource):
    """``format("sink")``. Its option `pauseMs` is a pause before each record batch.

    With `crashFile`, the driver ends in a commit after `crashAfterCommits` transactions are
    committed, once: then the file is gone.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.sink_options = dict(options)
        self.pause_s = int(self.sink_options.pop("pausems", "0")) / 1000
        self.crash_file = self.sink_options.pop("crashfile", None)
        self.crash_after = int(self.sink_options.pop("crashaftercommits", "0"))

    @classmethod
    def name(cls) -> str:
        return "sink"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return batch_writer(self.sink_options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        writer = SlowWriter(stream_writer(self.sink_options, schema, overwrite), self.pause_s)
        if self.crash_file is not None and Path(self.crash_file).exists():
            return CrashingWriter(writer, Path(self.crash_file), self.crash_after)
        return writer


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


class CrashingWriter(SlowWriter):
    """A writer whose driver ends in the second phase of a commit."""

    def __init__(self, writer: SlowWriter, file: Path, after: int) -> None:
        super().__init__(writer.writer, writer.pause_s)
        self.file = file
        self.after = after

    def commit(self, messages: Any, batchId: int) -> None:
        original, left = BatchCommits.end, self.after

        async def end(commits: BatchCommits, txn: str, *, commit: bool) -> bool:
            nonlocal left
            if commit and not left:
                self.file.unlink()
                end_driver()
            left -= commit
            return await original(commits, txn, commit=commit)

        with patch.object(BatchCommits, "end", end):
            super().commit(messages, batchId)


def end_driver() -> None:
    """Kill the JVM, the program that started it, and this process."""
    for each in psutil.Process().parents():
        command = " ".join(each.cmdline())
        if "java" in each.name() or "integration.spark.sink_process" in command:
            each.kill()
    os._exit(1)
