"""The data source behind ``format("pulsar")``.

Options are checked when a query is planned, before anything connects. With ``valueFormat=schema``
the schema registry is read once: PySpark pickles `PulsarDataSource` between `schema` and the
readers, and the answer goes with it.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Final

import pyspark
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter
from pyspark.sql.types import StructType

from ..errors import ConfigurationError
from . import compat
from .compat import DataSourceStreamArrowWriter
from .driver.batch import NarrowedBatchReader, PulsarBatchReader
from .driver.stream import PulsarStreamReader
from .plain_errors import plain_errors
from .reader.values.decoder_choice import check_columns, check_nullable, plan_of, value_fields
from .reader.values.schema_registry import plan_of_registry
from .reader.values.value_plan import ValuePlan
from .runtime import runtime
from .sink import batch_writer, check_reachable, stream_writer
from .source_columns import projected_schema, schema_of
from .source_options import ReadOptions, read_options

if TYPE_CHECKING:
    from collections.abc import MutableMapping


_PUSHDOWN_MODULE: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class PulsarDataSource(DataSource):
    """Pulsar as a source and a sink of Spark.

    Args:
        options: The options of ``.option(...)``.

    Raises:
        ConfigurationError: if an option is unknown or wrong; the text says what to change.

    Example:
        PySpark creates it; use it by name::

            spark.read.format("pulsar").option("service.url", "pulsar://localhost:6650")
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.options = options
        self._values: ValuePlan | None = None

    @classmethod
    def name(cls) -> str:
        return "pulsar"

    @plain_errors()
    def schema(self) -> StructType:
        """Return the columns of a read: those of the value and the chosen metadata.

        Raises:
            ConfigurationError: if the topics have different schemas, or Spark has no type for the
                schema.
            TransportError: if the registry cannot be reached.
        """
        return self._offered_schema(self._read_options(streaming=None))

    @plain_errors()
    def reader(self, schema: StructType) -> PulsarBatchReader:
        options = self._checked_options(streaming=False)
        kind = NarrowedBatchReader if _has_filters() else PulsarBatchReader
        return kind(options, self._projected_schema(schema, options), self._plan(options))

    @plain_errors()
    def streamReader(self, schema: StructType) -> PulsarStreamReader:
        options = self._checked_options(streaming=True)
        if not compat.HAS_LIMITS and options.limits.need_counts:
            raise ConfigurationError(
                "limits of a batch (maxEntriesPerTrigger, maxOffsetsPerTrigger, "
                "maxBytesPerTrigger, minOffsetsPerTrigger) need PySpark 4.2 or later, this is "
                f"{pyspark.__version__}: leave them out, or update PySpark"
            )
        return PulsarStreamReader(
            options, self._projected_schema(schema, options), self._plan(options)
        )

    def _offered_schema(self, options: ReadOptions) -> StructType:
        shape = options.shape
        fields = value_fields(self._plan(options))
        check_columns(fields, [shape.prefix + each.key for each in shape.columns])
        return schema_of(fields, shape.columns, shape.prefix)

    def _projected_schema(self, schema: StructType, options: ReadOptions) -> StructType:
        wanted = projected_schema(schema, self._offered_schema(options))
        check_nullable(wanted, value_fields(self._plan(options)))
        return wanted

    def _plan(self, options: ReadOptions) -> ValuePlan:
        if options.shape.value_format != "schema":
            return plan_of(options.shape)
        if self._values is None:
            process_runtime = runtime()
            client = process_runtime.client(options.connection)
            self._values = process_runtime.call(
                plan_of_registry(client, options), "ask for schemas"
            )
        return self._values

    @plain_errors()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        writer = batch_writer(dict(self.options), schema, overwrite)
        check_reachable(dict(self.options))
        return writer

    @plain_errors()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return stream_writer(dict(self.options), schema, overwrite)

    def _checked_options(self, *, streaming: bool) -> ReadOptions:
        options = self._read_options(streaming=streaming)
        if options.reading.keys is not None:
            options.reading.keys.check()
        return options

    def _read_options(self, *, streaming: bool | None) -> ReadOptions:
        return read_options(dict(self.options), streaming=streaming)


def _has_filters() -> bool:
    """Return True if PySpark is about to push filters.

    PySpark rejects a reader with `pushFilters` if the session has not enabled pushdown, and passes
    no configuration to this process. The call stack is the only sign. If a later PySpark than 4.3
    calls the source in another way, no filters are pushed: the read is slower but correct.
    """
    frame = inspect.currentframe()
    while frame is not None:
        spec = frame.f_globals.get("__spec__")
        if spec is not None and spec.name == _PUSHDOWN_MODULE:
            return True
        frame = frame.f_back
    return False
