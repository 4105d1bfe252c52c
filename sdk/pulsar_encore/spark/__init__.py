"""Pulsar for PySpark: a source, a sink and the triage of dead letters.

Needs `pip install "pulsar-encore[spark]"` and Java 17 or later. PySpark finds the source without
registration if its workers run an interpreter that has this package (see `register`)::

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
    """Register the source with a session, so that its workers run the present interpreter.

    Spark finds the source without this call if its workers have this package. Workers run the
    interpreter in PYSPARK_PYTHON, or the `python3` of PATH. On a local master without
    PYSPARK_PYTHON, this call makes the workers run the present interpreter. If PYSPARK_PYTHON names
    an interpreter without this package, the error comes here and not as the JVM's
    DATA_SOURCE_NOT_FOUND.

    Args:
        spark: The session.
        name: The name for ``format(name)``. Choose another name if a JVM connector owns "pulsar".

    Raises:
        ConfigurationError: if the workers' interpreter cannot import this package.

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
