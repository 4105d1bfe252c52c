"""`PulsarDataSource`: what PySpark calls."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource


class PulsarDataSource(DataSource):
    """The data source `pulsar`."""
