"""`PulsarDataSource`: what PySpark makes of ``format("pulsar")``.

Options are checked here, and so in the driver when a query is planned, before anything connects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
)
from pyspark.sql.types import StructType

from .columns import chosen, projected, schema_of
from .driver.batch import PulsarBatchReader
from .driver.stream import PulsarStreamReader
from .options import ReadOptions, read_options
from .reading.values import values_of
from .sink import batch_writer, stream_writer

if TYPE_CHECKING:
    from collections.abc import MutableMapping


class PulsarDataSource(DataSource):
    """Pulsar as a source and a sink of Spark.

    Args:
        options: As given to ``.option(...)``.

    Raises:
        ConfigurationError: One is unknown or wrong; the text says what to change.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.options = options

    @classmethod
    def name(cls) -> str:
        return "pulsar"

    def schema(self) -> StructType:
        """What a read yields: the value, and the columns that were asked for."""
        shape = self._read(streaming=None).shape
        columns = chosen(shape.include, shape.prefix, letters=shape.view != "plain")
        return schema_of(values_of(shape).fields(), columns, shape.prefix)

    def reader(self, schema: StructType) -> PulsarBatchReader:
        options = self._read(streaming=False)
        return PulsarBatchReader(options, projected(schema, self.schema()))

    def streamReader(self, schema: StructType) -> PulsarStreamReader:
        options = self._read(streaming=True)
        return PulsarStreamReader(options, projected(schema, self.schema()))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return batch_writer(dict(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return stream_writer(dict(self.options), schema, overwrite)

    def _read(self, *, streaming: bool | None) -> ReadOptions:
        return read_options(dict(self.options), streaming=streaming)
