"""Reading in Spark: record batches, tuples of the same source, two tasks, and a consumer loop.

A million messages of 200 bytes in producer batches of 1000 are on one topic of a real Pulsar. All
queries run in turns in one Spark session on this machine, and the medians count. The rows are
discarded (`noop`). The consumer loop receives and acks one by one with the native transport. Two
tasks need cores that one task leaves idle, so the number of busy cores is printed, with all
processes of the machine counted, including the broker and Spark's JVM. The time from ``start()`` to
the first row of a stream is compared with Spark's own source `rate` and with a Python source
without a broker.

    python -m integration.benchmarks.spark_source --url URL [--rounds 3] [--messages 1000000]
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import psutil
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, InputPartition, SimpleDataSourceStreamReader
from pyspark.sql.types import StructType

import pulsar_encore as encore
from pulsar_encore.spark import PulsarDataSource
from pulsar_encore.spark.driver.batch import PulsarBatchReader

from ..spark.spark_kit import spark_session

SIZE: Final = 200
BATCH: Final = 1000


class Tuples(PulsarBatchReader):
    """The same reader, row by row."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        for batch in super().read(partition):
            columns = [column.to_pylist() for column in batch.columns]
            # Arrow returns a map as pairs, and a row needs a dict.
            for at, name in enumerate(batch.schema.names):
                if name.endswith("messageProperties"):
                    columns[at] = [dict(each) for each in columns[at]]
            yield from zip(*columns, strict=True)


class TupleSource(PulsarDataSource):
    """The source, with a reader that yields tuples."""

    @classmethod
    def name(cls) -> str:
        return "pulsar-tuples"

    def reader(self, schema: StructType) -> Tuples:
        made = super().reader(schema)
        return Tuples(made._options, made._schema, made._value_plan)


class OneRowReader(SimpleDataSourceStreamReader):
    """The smallest Python source: one row for each offset."""

    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[int]], dict[str, int]]:
        return iter([(start["at"],)]), {"at": start["at"] + 1}

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[Any]:
        return iter([(at,) for at in range(start["at"], end["at"])])


class OneRow(DataSource):
    """A Python stream without a broker."""

    @classmethod
    def name(cls) -> str:
        return "one-row"

    def schema(self) -> str:
        return "at bigint"

    def simpleStreamReader(self, schema: StructType) -> OneRowReader:
        return OneRowReader()


async def fill(url: str, topic: str, messages: int) -> None:
    async with encore.Client(url) as client:
        keep = await client.subscribe(topic, "keep")
        producer = await client.create_producer(
            topic,
            batching_enabled=True,
            batching_max_messages=BATCH,
            batching_max_allowed_size_in_bytes=1 << 20,
            block_if_queue_full=True,
        )
        for start in range(0, messages, 10_000):
            numbers = range(start, min(messages, start + 10_000))
            await asyncio.gather(
                *(producer.send((b"%012d" % number).ljust(SIZE, b"x")) for number in numbers)
            )
        await keep.close()


async def consume(url: str, topic: str, messages: int) -> float:
    """Return the seconds of a plain consumer loop."""
    async with encore.Client(url, transport="native") as client:
        consumer = await client.subscribe(
            topic,
            f"loop-{uuid.uuid4().hex[:8]}",
            initial_position=encore.InitialPosition.Earliest,
            receiver_queue_size=10_000,
        )
        began = time.perf_counter()
        for _ in range(messages):
            await consumer.acknowledge(await consumer.receive())
        return time.perf_counter() - began


def read(spark: SparkSession, url: str, topic: str, source: str, **options: str) -> float:
    """Return the seconds of a query that reads and discards everything."""
    reader = spark.read.format(source).option("service.url", url).option("topic", topic)
    frame = reader.options(**options).load()
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def first_row(stream: Any, folder: Path) -> float:
    """Return the seconds from `start()` to the first row."""
    found: list[float] = []

    def keep(frame: Any, batch: int) -> None:
        if not found and frame.take(1):
            found.append(time.perf_counter())

    began = time.perf_counter()
    query = (
        stream.writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(folder / uuid.uuid4().hex))
        .start()
    )
    while not found:
        time.sleep(0.001)
    query.stop()
    return found[0] - began


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=1_000_000)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, spark_session("local[2]") as spark:
        compare(spark, Path(folder), options.url, options.messages, options.rounds)


def compare(spark: SparkSession, folder: Path, url: str, count: int, rounds: int) -> None:
    """Measure, and print the table."""
    spark.dataSource.register(PulsarDataSource)
    spark.dataSource.register(TupleSource)
    spark.dataSource.register(OneRow)
    topic = f"persistent://public/default/spark-{uuid.uuid4().hex[:8]}"
    asyncio.run(fill(url, topic, count))
    slim = {"includeMetadata": "none"}
    queries: dict[str, Callable[[], float]] = {
        "record batches, one task": lambda: read(spark, url, topic, "pulsar"),
        "record batches, two tasks": lambda: read(spark, url, topic, "pulsar", minPartitions="2"),
        "tuples, one task": lambda: read(spark, url, topic, "pulsar-tuples"),
        "value alone, one task": lambda: read(spark, url, topic, "pulsar", **slim),
        "value alone, two tasks": lambda: read(
            spark, url, topic, "pulsar", minPartitions="2", **slim
        ),
        "consumer loop": lambda: asyncio.run(consume(url, topic, count)),
    }
    for run in queries.values():
        run()  # warm
    seconds: dict[str, list[float]] = {name: [] for name in queries}
    busy: dict[str, list[float]] = {name: [] for name in queries}
    for _ in range(rounds):
        for name, run in queries.items():
            psutil.cpu_percent()
            seconds[name].append(run())
            busy[name].append(psutil.cpu_percent() / 100 * (psutil.cpu_count() or 1))
    middle = {name: median(each) for name, each in seconds.items()}
    for name, each in middle.items():
        print(f"{name:28} {count / each:>12,.0f} rows/s, {median(busy[name]):.1f} cores busy")
    one = middle["record batches, one task"]
    print(f"one task, of tuples          {middle['tuples, one task'] / one:>12.2f} (bar 3)")
    print(f"one task, of a consumer loop {middle['consumer loop'] / one:>12.2f} (bar 1)")
    print(
        f"two tasks, of one            {one / middle['record batches, two tasks']:>12.2f} (bar 1.5)"
    )

    def stream() -> Any:
        reader = spark.readStream.format("pulsar").option("service.url", url)
        return (
            reader.option("topic", topic)
            .option("startingOffsets", "earliest")
            .option("maxEntriesPerTrigger", "1")
            .load()
        )

    def rate() -> Any:
        return spark.readStream.format("rate").option("rowsPerSecond", "100").load()

    def one_row() -> Any:
        return spark.readStream.format("one-row").load()

    first = {"pulsar": stream, "a Python source": one_row, "rate": rate}
    times: dict[str, list[float]] = {name: [] for name in first}
    for at in range(rounds + 1):
        for name, make in first.items():
            taken = first_row(make(), folder)
            if at:  # the first round is the warm-up
                times[name].append(taken)
    for name, each in times.items():
        print(f"first row of a stream, {name:15} {median(each):>6.2f} s")


if __name__ == "__main__":
    main()
