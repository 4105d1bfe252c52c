"""Where a triage leaves what it found, on any file system that Spark knows.

Owns the layout below the output folder, and writing a single file. A batch's folder is written as
a whole and in place of an earlier try, so a batch that is run again is there once::

    letters/run=<run>/batch=<n>/route=replay|refused|kept|duplicate/*.parquet
    groups/run=<run>/batch=<n>/*.parquet
"""

from __future__ import annotations

from collections.abc import Iterable
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
    # PySpark has no call of its own for a file that is no table.
    jvm: Any = spark.sparkContext._jvm
    context: Any = spark.sparkContext._jsc
    try:
        where = jvm.org.apache.hadoop.fs.Path(path)
        stream = where.getFileSystem(context.hadoopConfiguration()).create(where, True)
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()
    except Exception as error:
        thrown = getattr(error, "java_exception", None)
        if thrown is None:
            raise
        reason = thrown.toString()
        raise ConfigurationError(f"cannot write {path!r}: {reason}") from error
