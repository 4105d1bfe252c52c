"""Pulsar for PySpark: a source, a sink and the triage of dead letters.

Needs `pip install "pulsar-encore[spark]"` and Java 17 or later. PySpark finds the source
by itself::

    spark.read.format("pulsar").option("service.url", "pulsar://localhost:6650") \\
        .option("topic", "orders").load()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import DataLossError, MalformedValueError, StalledError
from .source import PulsarDataSource

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
    """Make the source known to a session by another name, where a JVM connector owns "pulsar".

    Args:
        spark: The session.
        name: For ``format(name)``.
    """
    if name == "pulsar":
        spark.dataSource.register(PulsarDataSource)
        return

    class Named(PulsarDataSource):
        @classmethod
        def name(cls) -> str:
            return name

    spark.dataSource.register(Named)
