"""Where a triage leaves what it found, on any file system that Spark knows.

Owns the layout below the output folder, and writing a single file. A batch's folder is written as
a whole and in place of an earlier try, so a batch that is run again is there once::

    letters/run=<run>/batch=<n>/route=replay|refused|kept|duplicate/*.parquet
    groups/run=<run>/batch=<n>/*.parquet
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from ...errors import ConfigurationError


def store(rows: DataFrame, out: str, kind: str, run: str, batch: int, by: Iterable[str]) -> None:
    """Write one batch's rows.

    Args:
        rows: What is written.
        out: The output folder, a path or URL of Spark's.
        kind: "letters" or "groups".
        run: Of the report.
        batch: Number in it.
        by: Columns that become folders.
    """
    (
        rows.write.mode("overwrite")
        # Else a session's "dynamic" would leave folders of an earlier try.
        .option("partitionOverwriteMode", "static")
        .partitionBy(*by)
        .parquet(f"{out.rstrip('/')}/{kind}/run={run}/batch={batch}")
    )


def check_file(path: str) -> None:
    """That a file can be written, before anything is done that it is to show.

    Raises:
        ConfigurationError: It cannot. Of a path with a scheme, that is seen by `check_remote_file`.
    """
    if "://" in path:
        return
    where = Path(path)
    try:
        new = not where.exists()
        with where.open("ab"):
            pass
        if new:
            where.unlink()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigurationError(f"cannot write {path!r}: {reason}") from error


def check_remote_file(spark: SparkSession, path: str) -> None:
    """The same of a path with a scheme.

    Raises:
        ConfigurationError: It cannot be written.
    """
    if "://" not in path:
        return
    with _through_spark(spark, path) as (files, where):
        if files.exists(where):
            if files.getFileStatus(where).isDirectory():
                raise ConfigurationError(f"cannot write {path!r}: it is a folder")
        else:
            files.create(where, True).close()
            files.delete(where, False)


def write_file(spark: SparkSession, path: str, data: bytes) -> None:
    """Write a file: with a scheme (`s3a://`, `hdfs://`) through Spark, else at the driver.

    Args:
        spark: The session, for its file systems and their credentials.
        path: A file, in place of one that is there.
        data: What is in it then.

    Raises:
        ConfigurationError: It cannot be written.
    """
    try:
        if "://" in path:
            _write_through_spark(spark, path, data)
        else:
            Path(path).write_bytes(data)
    except OSError as error:
        raise ConfigurationError(f"cannot write {path!r}: {error.strerror}") from error


def _write_through_spark(spark: SparkSession, path: str, data: bytes) -> None:
    with _through_spark(spark, path) as (files, where):
        stream = files.create(where, True)
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()


@contextmanager
def _through_spark(spark: SparkSession, path: str) -> Iterator[tuple[Any, Any]]:
    """Hadoop's file system and path of a URL: PySpark has no call of its own for a file that is no
    table."""
    jvm: Any = spark.sparkContext._jvm
    context: Any = spark.sparkContext._jsc
    try:
        where = jvm.org.apache.hadoop.fs.Path(path)
        yield where.getFileSystem(context.hadoopConfiguration()), where
    except Exception as error:
        thrown = getattr(error, "java_exception", None)
        if thrown is None:
            raise
        reason = thrown.toString()
        raise ConfigurationError(f"cannot write {path!r}: {reason}") from error
