"""Helpers for the tests of the sink: schemas, record batches, and a broker with a runtime.

Each test has its own runtime, like each of Spark's workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import pulsar_encore as encore
from pulsar_encore.devbroker import BrokerSettings, BrokerThread, FaultPlan, run_in_thread
from pulsar_encore.spark.compat import arrow_schema
from pulsar_encore.spark.connection_options import ConnectionOptions
from pulsar_encore.spark.runtime import Runtime
from pulsar_encore.spark.sink import SinkCommit, batch_writer, stream_writer
from pulsar_encore.spark.sink import data_writers as writers

URL: Final = "pulsar://somewhere:6650"
NAMESPACE: Final = "persistent://public/default/"


KINDS: Final[Mapping[str, DataType]] = {
    "boolean": BooleanType(),
    "binary": BinaryType(),
    "string": StringType(),
    "timestamp": TimestampType(),
    "int": IntegerType(),
    "long": LongType(),
    "double": DoubleType(),
    "map": MapType(StringType(), StringType()),
    "texts": ArrayType(StringType()),
}


def schema_of(**columns: str) -> StructType:
    """Return a schema from words of `KINDS`."""
    return StructType([StructField(name, KINDS[kind]) for name, kind in columns.items()])


def batch_of(schema: StructType, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    """Return rows as a record batch, like Spark hands them to a writer."""
    arrow = arrow_schema(schema)
    columns = list(zip(*rows, strict=True)) or [() for _ in schema]
    arrays = [pa.array(list(each), field.type) for each, field in zip(columns, arrow, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)


class Home:
    """A broker and the runtime that writes to it.

    Attributes:
        broker: A broker in its own thread.
        runtime: The runtime of this test.
    """

    def __init__(self, broker: BrokerThread, runtime: Runtime) -> None:
        self.broker = broker
        self.runtime = runtime

    def write(
        self,
        schema: StructType,
        *batches: Sequence[Sequence[Any]],
        options: Mapping[str, str],
        streaming: bool = False,
    ) -> SinkCommit:
        """Run a task on these record batches."""
        make = stream_writer if streaming else batch_writer
        writer = make({"service.url": self.broker.url, **options}, schema, False)
        commit = writer.write(iter([batch_of(schema, each) for each in batches]))
        assert isinstance(commit, SinkCommit)
        return commit

    def stored(self, topic: str) -> list[encore.Message]:
        """Return all messages of an unpartitioned topic, in order."""
        connection = ConnectionOptions(service_url=self.broker.url)
        client = self.runtime.client(connection)

        async def read() -> list[encore.Message]:
            found = []
            async with await client.create_reader(topic, encore.MessageId.earliest) as reader:
                while await reader.has_message_available():
                    found.append(await reader.read_next(10_000))
            return found

        return self.runtime.call(read(), f"read {topic}", 30)

    def topics(self) -> list[str]:
        """Return the names of all topics, without their namespace."""
        return sorted(each.removeprefix(NAMESPACE) for each in self.broker.topics())


@contextmanager
def home(settings: BrokerSettings | None = None, faults: FaultPlan | None = None) -> Iterator[Home]:
    """Start a broker and a runtime, and end both with the block."""
    runtime = Runtime()
    with run_in_thread(settings or BrokerSettings(keep_acked=True), faults=faults) as broker:
        try:
            with patch.object(writers, "runtime", lambda: runtime):
                yield Home(broker, runtime)
        finally:
            runtime.stop()
