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
    committed, once: then the file is gone. With `failFile`, one attempt at a task fails once, after
    it has sent rows: a worker of a stream ends, and the attempt of a batch raises an error.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.sink_options = dict(options)
        self.pause_s = int(self.sink_options.pop("pausems", "0")) / 1000
        self.fail_file = self.sink_options.pop("failfile", None)
        self.crash_file = self.sink_options.pop("crashfile", None)
        self.crash_after = int(self.sink_options.pop("crashaftercommits", "0"))

    @classmethod
    def name(cls) -> str:
        return "sink"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        writer = batch_writer(self.sink_options, schema, overwrite)
        return writer if self.fail_file is None else FailingWriter(writer, Path(self.fail_file))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        writer = SlowWriter(
            stream_writer(self.sink_options, schema, overwrite), self.pause_s, self.fail_file
        )
        if self.crash_file is not None and Path(self.crash_file).exists():
            return CrashingWriter(writer, Path(self.crash_file), self.crash_after)
        return writer


def is_first(file: str | Path | None) -> bool:
    """Remove a file. Return True if this call did."""
    if file is None:
        return False
    try:
        Path(file).unlink()
    except FileNotFoundError:
        return False
    return True


class FailingWriter(DataSourceArrowWriter):
    """The writer of a batch in which one attempt at a task fails after its first record batch."""

    def __init__(self, writer: DataSourceArrowWriter, file: Path) -> None:
        self.writer = writer
        self.file = file

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        def failing() -> Iterator[pa.RecordBatch]:
            for batch in iterator:
                yield batch
                if is_first(self.file):
                    time.sleep(1)  # the rows are sent meanwhile
                    raise RuntimeError("this attempt fails once")

        return self.writer.write(failing())

    def commit(self, messages: Any) -> None:
        self.writer.commit(messages)

    def abort(self, messages: Any) -> None:
        self.writer.abort(messages)


class SlowWriter(DataSourceStreamArrowWriter):
    """Another writer with a pause before each record batch.

    The worker that removes `fail_file` ends before its fifth one.
    """

    def __init__(
        self, writer: DataSourceStreamArrowWriter, pause_s: float, fail_file: str | None
    ) -> None:
        self.writer = writer
        self.pause_s = pause_s
        self.fail_file = fail_file

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        def paused() -> Iterator[pa.RecordBatch]:
            for number, batch in enumerate(iterator):
                time.sleep(self.pause_s)
                if number == 4 and is_first(self.fail_file):
                    os._exit(1)
                yield batch

        return self.writer.write(paused())

    def commit(self, messages: Any, batchId: int) -> None:
        self.writer.commit(messages, batchId)

    def abort(self, messages: Any, batchId: int) -> None:
        self.writer.abort(messages, batchId)


class CrashingWriter(SlowWriter):
    """A writer whose driver ends in the second phase of a commit."""

    def __init__(self, writer: SlowWriter, file: Path, after: int) -> None:
        super().__init__(writer.writer, writer.pause_s, writer.fail_file)
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
