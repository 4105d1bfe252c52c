"""The output of a triage, on any file system that Spark can write.

The folder of a batch is written as a whole and replaces that of an earlier attempt, so that a
repeated batch is stored once::

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
    """Write the rows of one batch; the columns `by` become folders."""
    (
        rows.write.mode("overwrite")
        # With "dynamic" in the session, folders of an earlier attempt would stay.
        .option("partitionOverwriteMode", "static")
        .partitionBy(*by)
        .parquet(f"{out.rstrip('/')}/{kind}/run={run}/batch={batch}")
    )


def check_file(path: str, name: str) -> None:
    """Check that a local file can be written, without changing it; raise ConfigurationError.

    A path with a scheme is not checked. `name` is the option, for the error.
    """
    if "://" in path:
        return
    try:
        real = os.path.realpath(path)  # the target of a link may be missing
        if os.path.isdir(real):
            raise ConfigurationError(f"{name}: {path!r} is a folder: name a file in it")
        if os.path.isfile(real):
            os.close(os.open(real, os.O_WRONLY))
        elif not os.path.exists(real):  # not a device or pipe
            os.close(os.open(real, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            os.unlink(real)
    except ConfigurationError:
        raise
    except (OSError, ValueError) as error:
        raise _cannot(path, name, error) from error


def check_remote_file(spark: SparkSession, path: str, name: str) -> None:
    """Check the same for a path with a scheme."""
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
    """Check that a local folder can be written or created, without creating it.

    URLs other than `file:` are not checked. Raises ConfigurationError.
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
    """Write or replace a file: through Spark if it has a scheme (`s3a://`), else on the driver.

    `spark` provides the file systems and their credentials. Raises ConfigurationError.
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
    """Yield Hadoop's file system and path of a URL. PySpark itself cannot write a plain file."""
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
