"""The Spark sink compared with row-wise writers of the same rows, in one session.

Each row has a value of 100 bytes, a key and an event time. One row-wise writer sends each row with
this SDK's `Producer.send`, another with the stock client's `send_async`. Both keep as many messages
pending as the sink does. The writers take turns on new topics. The bar: 4 times the rows/s of the
first row-wise writer, which publishes in the same way.

    make bench ONLY=spark_sink
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, MutableMapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceWriter, WriterCommitMessage

from pulsar_encore.spark.connection_options import ConnectionOptions
from pulsar_encore.spark.runtime import runtime
from pulsar_encore.spark.sink import batch_writer

from ..spark.spark_kit import spark_session
from .java_programs import missing_java
from .processes import broker, fresh_topic
from .rows import Row
from .trial import Benchmark, Trial

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS: Final = 50_000
TASKS: Final = 2
MAX_PENDING: Final = 10_000
BAR: Final = 4.0


class Arrow(DataSource):
    """The sink."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.options = options

    @classmethod
    def name(cls) -> str:
        return "arrow"

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        return batch_writer(dict(self.options), schema, overwrite)


class Rowwise(Arrow):
    """Writes one row at a time with this SDK."""

    @classmethod
    def name(cls) -> str:
        return "rowwise"

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        return RowWriter(self.options["service.url"], self.options["topic"])


class StockRowwise(Rowwise):
    """Writes one row at a time with the stock client."""

    @classmethod
    def name(cls) -> str:
        return "stock_rowwise"

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        return StockRowWriter(self.options["service.url"], self.options["topic"])


class RowWriter(DataSourceWriter):
    """Sends each row with `Producer.send`, some thousands at once."""

    def __init__(self, url: str, topic: str) -> None:
        self.url = url
        self.topic = topic

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        spark_runtime = runtime()
        client = spark_runtime.client(ConnectionOptions(service_url=self.url))

        async def make() -> Any:
            return await client.create_producer(
                self.topic, max_pending_messages=MAX_PENDING, block_if_queue_full=True
            )

        producer = spark_runtime.call(make(), "make a producer")
        permits = threading.BoundedSemaphore(MAX_PENDING)
        failures: list[BaseException] = []

        def sent(done: Any) -> None:
            permits.release()
            if done.exception() is not None:
                failures.append(done.exception())

        for row in iterator:
            permits.acquire()
            future = asyncio.run_coroutine_threadsafe(
                producer.send(
                    bytes(row.value),
                    partition_key=row["__key"],
                    event_timestamp=int(row["__eventTime"].timestamp() * 1000),
                ),
                spark_runtime.loop,
            )
            future.add_done_callback(sent)
        for _ in range(MAX_PENDING):
            permits.acquire()
        spark_runtime.call(producer.close(), "close the producer")
        if failures:
            raise failures[0]
        return WriterCommitMessage()


class StockRowWriter(RowWriter):
    """Sends each row with the C++ client, which batches and waits on threads of its own."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        import pulsar

        client = pulsar.Client(self.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        producer = client.create_producer(
            self.topic,
            batching_enabled=True,
            max_pending_messages=MAX_PENDING,
            block_if_queue_full=True,
        )
        failures: list[Any] = []

        def sent(result: Any, _: Any) -> None:
            if result != pulsar.Result.Ok:
                failures.append(result)

        for row in iterator:
            producer.send_async(
                bytes(row.value),
                sent,
                partition_key=row["__key"],
                event_timestamp=int(row["__eventTime"].timestamp() * 1000),
            )
        producer.flush()
        client.close()
        if failures:
            raise RuntimeError(str(failures[0]))
        return WriterCommitMessage()


SIDES: Final = (Arrow, Rowwise, StockRowwise)


def rows_of(spark: SparkSession, count: int) -> DataFrame:
    """Return the rows to write, computed in advance and cached."""
    made = spark.range(0, count, numPartitions=TASKS).select(
        F.rpad(F.col("id").cast("string"), 100, "x").cast("binary").alias("value"),
        F.concat(F.lit("key-"), F.col("id") % 1000).alias("__key"),
        F.timestamp_millis(F.lit(1_700_000_000_000) + F.col("id")).alias("__eventTime"),
    )
    cached = made.cache()
    cached.count()
    return cached


def run(trial: Trial) -> Iterator[Row]:
    """Measure all writers in turns, after one round of warm-up."""
    with broker(trial.url) as url, spark_session(f"local[{TASKS}]") as spark:
        made = rows_of(spark, ROWS)

        def rate(side: type[Arrow]) -> float:
            writer = made.write.format(side.name()).mode("append")
            began = time.perf_counter()
            writer.options(**{"service.url": url, "topic": fresh_topic()}).save()
            return ROWS / (time.perf_counter() - began)

        for side in SIDES:
            spark.dataSource.register(side)
            trial.step(f"{side.name()}, warming up")
            rate(side)
        rates = trial.in_turns("writers", {each.name(): partial(rate, each) for each in SIDES})
        made.unpersist()
    for other, what, beside, bar in (
        (Rowwise, "in Arrow batches", "row-wise writer", BAR),
        (StockRowwise, "in Arrow batches, native transport", "row-wise writer, stock", None),
    ):
        yield Row(
            what=f"rate, {what}",
            unit="rows/s",
            ours=tuple(rates[Arrow.name()]),
            other=tuple(rates[other.name()]),
            bar=bar,
            higher_is_better=True,
            beside=beside,
        )


BENCHMARK: Final = Benchmark(
    name="spark_sink",
    title="Spark sink",
    about=(
        "Rows with a value of 100 bytes, a key and an event time, written by two tasks, beside "
        "writers that send each row, with this package and with the stock client."
    ),
    seconds=95,
    quick_s=None,
    run=run,
    available=partial(missing_java, build=False),
)
