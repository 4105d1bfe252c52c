"""Where a triage leaves what it found, on any file system that Spark knows.

Owns the layout below the output folder, writing a single file, and whether a path of this machine
can be written. A batch's folder is written as
a whole and in place of an earlier try, so a batch that is run again is there once::

    letters/run=<run>/batch=<n>/route=replay|refused|kept|duplicate/*.parquet
    groups/run=<run>/batch=<n>/*.parquet
"""

from __future__ import annotations

import os
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


def check_file(path: str, name: str) -> None:
    """That a file of this machine can be written; it is as it was.

    Args:
        path: Of a file. One with a scheme is not looked at.
        name: Of the option.

    Raises:
        ConfigurationError: It cannot.
    """
    if "://" in path:
        return
    try:
        real = os.path.realpath(path)  # the file that a link is of may be missing
        if os.path.isdir(real):
            raise ConfigurationError(f"{name}: {path!r} is a folder: name a file in it")
        if os.path.isfile(real):
            os.close(os.open(real, os.O_WRONLY))
        elif not os.path.exists(real):  # neither a device nor a pipe
            os.close(os.open(real, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            os.unlink(real)
    except ConfigurationError:
        raise
    except (OSError, ValueError) as error:
        raise _cannot(path, name, error) from error


def check_remote_file(spark: SparkSession, path: str, name: str) -> None:
    """The same of one with a scheme.

    Raises:
        ConfigurationError: It cannot be written.
    """
    if "://" not in path:
        return
    with _through_spark(spark, path) as (files, where):
        if files.exists(where):
            if files.getFileStatus(where).isDirectory():
                raise ConfigurationError(f"{name}: {path!r} is a folder: name a file in it")
        else:
            files.create(where, True).close()
            files.delete(where, False)


def check_folder(path: str, name: str) -> None:
    """That a folder of this machine can be written in, or made; nothing is made.

    Args:
        path: Of a folder, or a URL with `file:`. Others are not looked at.
        name: Of the option.

    Raises:
        ConfigurationError: It cannot.
    """
    scheme, colon, rest = path.partition(":")
    if colon and "/" not in scheme:
        if scheme != "file":
            return
        path = "/" + rest.lstrip("/")
    try:
        there = os.path.realpath(path)
        while not os.path.lexists(there) and there != os.path.dirname(there):
            there = os.path.dirname(there)
        if not os.path.isdir(there):
            raise ConfigurationError(f"{name}: cannot write in {path!r}: {there!r} is no folder")
        if not os.access(there, os.W_OK | os.X_OK):
            raise ConfigurationError(f"{name}: cannot write in {path!r}: {there!r} is read-only")
    except ConfigurationError:
        raise
    except (OSError, ValueError) as error:
        raise _cannot(path, name, error) from error


def _cannot(path: str, name: str, error: Exception) -> ConfigurationError:
    why = getattr(error, "strerror", None) or error
    return ConfigurationError(f"{name}: cannot write {path!r}: {why}")


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
