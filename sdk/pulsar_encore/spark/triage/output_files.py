"""The output of a triage, on any file system that Spark can write.

The folder of a batch replaces that of an earlier attempt::

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
    """Check that a local file can be written, without changing it.

    A path with a scheme is not checked. `name` is the option, for the ConfigurationError.
    """
    if "://" in path:
        return
    try:
        target = os.path.realpath(path)  # the target of a link may be missing
        if os.path.isdir(target):
            raise ConfigurationError(f"{name}: {path!r} is a folder: name a file in it")
        if os.path.isfile(target):
            os.close(os.open(target, os.O_WRONLY))
        elif not os.path.exists(target):  # not a device or pipe
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            os.unlink(target)
    except ConfigurationError:
        raise
    except (OSError, ValueError) as error:
        raise _write_error(path, name, error) from error


def check_remote_file(spark: SparkSession, path: str, name: str) -> None:
    """Check that a file with a scheme can be written."""
    if "://" not in path:
        return
    with _through_spark(spark, path) as (files, file_path):
        if files.exists(file_path):
            if files.getFileStatus(file_path).isDirectory():
                raise ConfigurationError(f"{name}: {path!r} is a folder: name a file in it")
        else:
            files.create(file_path, True).close()
            files.delete(file_path, False)


def check_folder(path: str, name: str) -> None:
    """Check that a local folder can be written or created, without creating it.

    URLs other than `file:` are not checked.
    """
    scheme, colon, rest = path.partition(":")
    if colon and "/" not in scheme:
        if scheme != "file":
            return
        path = "/" + rest.lstrip("/")
    try:
        existing = os.path.realpath(path)
        while not os.path.lexists(existing) and existing != os.path.dirname(existing):
            existing = os.path.dirname(existing)
        if not os.path.isdir(existing):
            raise ConfigurationError(f"{name}: cannot write in {path!r}: {existing!r} is no folder")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise ConfigurationError(f"{name}: cannot write in {path!r}: {existing!r} is read-only")
    except ConfigurationError:
        raise
    except (OSError, ValueError) as error:
        raise _write_error(path, name, error) from error


def _write_error(path: str, name: str, error: Exception) -> ConfigurationError:
    reason = getattr(error, "strerror", None) or error
    return ConfigurationError(f"{name}: cannot write {path!r}: {reason}")


def write_file(spark: SparkSession, path: str, data: bytes) -> None:
    """Write or replace a file: through Spark if it has a scheme (`s3a://`), else on the driver."""
    try:
        if "://" in path:
            _write_through_spark(spark, path, data)
        else:
            Path(path).write_bytes(data)
    except OSError as error:
        raise ConfigurationError(f"cannot write {path!r}: {error.strerror}") from error


def _write_through_spark(spark: SparkSession, path: str, data: bytes) -> None:
    with _through_spark(spark, path) as (files, file_path):
        stream = files.create(file_path, True)
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
        file_path = jvm.org.apache.hadoop.fs.Path(path)
        yield file_path.getFileSystem(context.hadoopConfiguration()), file_path
    except Exception as error:
        thrown = getattr(error, "java_exception", None)
        if thrown is None:
            raise
        reason = thrown.toString()
        raise ConfigurationError(f"cannot write {path!r}: {reason}") from error
