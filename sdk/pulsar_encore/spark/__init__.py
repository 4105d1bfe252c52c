"""Pulsar for PySpark: a source, a sink and the triage of dead letters.

Needs `pip install "pulsar-encore[spark]"` and Java 17 or later. PySpark finds the source
by itself, if its workers run an interpreter that has this package (`register`)::

    spark.read.format("pulsar").option("service.url", "pulsar://localhost:6650") \\
        .option("topic", "orders").load()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import compat as compat
from .data_source import PulsarDataSource
from .interpreters import use_this_python
from .spark_errors import DataLossError, MalformedValueError, StalledError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "DataLossError",
    "MalformedValueError",
    "PulsarDataSource",
    "StalledError",
    "register",
]


def register(spark: SparkSession, name: str = "pulsar") -> None:
    """Make the source known to a session, with the interpreter that runs this.

    Spark finds the source by itself where its workers have this package. They run the interpreter
    that PYSPARK_PYTHON names, or the `python3` of PATH. On a local master without PYSPARK_PYTHON
    this makes the session's workers run this interpreter. An interpreter that is named and lacks
    this package is an error here, and not the JVM's DATA_SOURCE_NOT_FOUND.

    Args:
        spark: The session.
        name: For ``format(name)``; another one than "pulsar" where a JVM connector owns that.

    Raises:
        ConfigurationError: The workers' interpreter cannot import this package.

    Example:
        >>> register(spark)
        >>> spark.read.format("pulsar").option("topic", "orders")
    """
    use_this_python(spark)
    if name == "pulsar":
        spark.dataSource.register(PulsarDataSource)
        return

    class Named(PulsarDataSource):
        @classmethod
        def name(cls) -> str:
            return name

    spark.dataSource.register(Named)
