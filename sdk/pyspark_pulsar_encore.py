"""PySpark imports every module named ``pyspark_*``: by this one it knows ``format("pulsar")``.

Where a JVM connector owns that name, `pulsar_encore.spark.register` gives another.
"""

from pulsar_encore.spark.data_source import PulsarDataSource as DefaultSource

__all__ = ["DefaultSource"]
