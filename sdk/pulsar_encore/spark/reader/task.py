"""The work of a task, for batches and streams alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
from pyspark.sql.types import StructType

from ..runtime import runtime
from ..source_options import ReadOptions
from .message_rows import MessageRows
from .range_fetch import RangeFetch, ReadRange
from .values.decoder_choice import values_of
from .values.schema_registry import writer_texts
from .values.value_plan import ValuePlan


def read_range(
    options: ReadOptions, schema: StructType, plan: ValuePlan, wanted: ReadRange
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a range as rows."""
    shape = options.shape
    rows = MessageRows(
        schema,
        shape.columns,
        shape.prefix,
        values_of(plan, schema, wanted.topic, writer_texts(options.connection, wanted.topic)),
        wanted.topic,
        wanted.partition,
        options.reading.batch_rows,
    )
    fetch = RangeFetch(
        runtime(),
        options.connection,
        wanted,
        options.reading,
        fail_on_loss=options.fail_on_data_loss,
        reads_values=rows.has_values,
    )
    with closing(iter(fetch)) as slice_lists:  # also when Spark stops reading early
        for slices in slice_lists:
            yield from rows.add(slices)
    yield from rows.flush_rest()
