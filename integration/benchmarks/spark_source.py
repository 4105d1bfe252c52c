"""Reading in Spark, beside StreamNative's connector, a consumer loop and a row-wise reader.

Messages of 200 bytes in producer batches of 1000 are on one topic. All subjects take turns in one
Spark session with two cores, and read the whole topic with the same columns. The rows are discarded
(`noop`), or written as Parquet. The plain loops use the native transport: one receives and acks one
by one, the other also writes the same columns with PyArrow.

StreamNative's connector (io.streamnative.connectors:pulsar-spark-connector) cannot run in the Spark
of this project. Its newest release on Maven Central is 3.1.1.4, for Spark 3.1 and Scala 2.12 only.
Spark 4 has Scala 2.13, and there the first query fails with `java.lang.NoClassDefFoundError:
scala/Serializable`. It runs in Spark 3.5.9, the newest one with Scala 2.12 (not in 3.1.3 with Java
17: `IllegalArgumentException: too many arguments` in `LambdaDeserializer`). So it has a Spark of
its own, in a JVM with as many cores, which takes its turns like the others. It needs the admin API:
a real Pulsar, whose URL is in PULSAR_ADMIN_URL (port 8080 of the same host when unset).

Two tasks need cores that one task leaves idle. The broker and Spark's JVM need cores too, so two
cores hardly show a gain. The time from ``start()`` to the first row of a stream is compared with
Spark's own source `rate` and with a Python source without a broker.

    make bench ONLY=spark_source URL=...
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, InputPartition, SimpleDataSourceStreamReader
from pyspark.sql.types import StructType

import pulsar_encore as encore
from pulsar_encore.spark import PulsarDataSource
from pulsar_encore.spark.driver.batch import PulsarBatchReader

from ..spark.spark_kit import spark_session
from .java_programs import Answer, java_program, missing_java
from .processes import broker
from .rows import Row, row_of
from .trial import Benchmark, Trial

SIZE: Final = 200
BATCH: Final = 1000
CORES: Final = 2
_NOOP: Final = "noop"
_POLL_S: Final = 0.1  # the time of the first row is taken in Spark's callback
_BLOCK: Final = 10_000  # rows that the loop writes to Parquet at once
_CONNECTOR: Final = "JVM connector"
#: Spark 3.5 on Java 17 needs these; its own scripts set them.
_OPENED: Final = tuple(
    f"--add-opens=java.base/{name}=ALL-UNNAMED"
    for name in (
        *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio"),
        *("java.util", "java.util.concurrent", "java.util.concurrent.atomic", "sun.nio.ch"),
        *("sun.nio.cs", "sun.security.action", "sun.util.calendar", "jdk.internal.ref"),
    )
)
_COLUMNS: Final = pa.schema(
    [
        ("value", pa.binary()),
        ("__key", pa.binary()),
        ("__topic", pa.string()),
        ("__messageId", pa.binary()),
        ("__publishTime", pa.timestamp("ms", tz="UTC")),
        ("__eventTime", pa.timestamp("ms", tz="UTC")),
        ("__messageProperties", pa.map_(pa.string(), pa.string())),
    ]
)


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


async def consume(url: str, topic: str, messages: int, file: Path | None) -> None:
    """Receive and ack one by one, and write the columns to a file if there is one."""
    async with encore.Client(url, transport="native") as client:
        consumer = await client.subscribe(
            topic,
            f"loop-{uuid.uuid4().hex[:8]}",
            initial_position=encore.InitialPosition.Earliest,
            receiver_queue_size=10_000,
        )
        if file is None:
            for _ in range(messages):
                await consumer.acknowledge(await consumer.receive())
            return
        with pq.ParquetWriter(file, _COLUMNS) as writer:
            for start in range(0, messages, _BLOCK):
                block = [await consumer.receive() for _ in range(min(_BLOCK, messages - start))]
                writer.write_batch(_columns(block))
                for message in block:
                    await consumer.acknowledge(message)


def _columns(messages: list[encore.Message]) -> pa.RecordBatch:
    keys = [each.partition_key() for each in messages]
    return pa.record_batch(
        [
            [each.data() for each in messages],
            [key.encode() if key else None for key in keys],
            [each.topic_name() for each in messages],
            [each.message_id().serialize() for each in messages],
            [each.publish_timestamp() for each in messages],
            [each.event_timestamp() or None for each in messages],
            [list(each.properties().items()) for each in messages],
        ],
        schema=_COLUMNS,
    )


def _timed(work: Callable[[], object], count: int) -> Answer:
    """Return the figures of a query; CPU of this process and all below it, such as Spark's."""
    began, cpu = time.perf_counter(), _cpu_s()
    work()
    seconds, cpu_s = time.perf_counter() - began, _cpu_s() - cpu
    return {"per_s": count / seconds, "cpu_us": cpu_s / count * 1e6}


def _connected(connector: Callable[..., Answer], topic: str, target: object, count: int) -> Answer:
    """Return the figures of a query of the connector, which measures itself."""
    answer = connector(topic, target)
    return {"per_s": count / answer["seconds"], "cpu_us": answer["cpu_s"] / count * 1e6}


def _cpu_s() -> float:
    """Return the CPU time of this process and its descendants, also of those that have ended.

    The JVM of the connector is among them. It is idle while another subject is measured.
    """
    this = psutil.Process()
    total = 0.0
    for process in (this, *this.children(recursive=True)):
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:  # it ended between the list and the look
            continue
    return total


def read(
    spark: SparkSession, url: str, topic: str, source: str, target: Path | None, **options: str
) -> None:
    """Run a query that reads everything, and discards it or writes Parquet."""
    reader = spark.read.format(source).option("service.url", url).option("topic", topic)
    writer = reader.options(**options).load().write.mode("overwrite")
    if target is None:
        writer.format(_NOOP).save()
    else:
        writer.parquet(str(target))


def first_row(stream: Any, folder: Path) -> float:
    """Return the seconds from `start()` to the first row.

    Raises:
        StreamingQueryException: if the query failed.
        RuntimeError: if it ended without a row.
    """
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
    # It raises the error of a query that failed.
    while not found and not query.awaitTermination(_POLL_S):
        pass
    query.stop()
    if not found:
        raise RuntimeError("the stream ended without a row")
    return found[0] - began


def no_connector(url: str | None) -> str:
    """Return why StreamNative's connector cannot be measured, or ""."""
    if url is None:
        return f"the {_CONNECTOR} needs the admin API of a real Pulsar: name one with --url"
    return missing_java()


def admin_url(url: str) -> str:
    """Return the URL of the admin API of a broker."""
    return os.environ.get("PULSAR_ADMIN_URL") or f"http://{urlsplit(url).hostname}:8080"


def run(trial: Trial) -> Iterator[Row]:
    """Measure queries, loops and streams.

    Raises:
        JavaProgramError: if the connector cannot be compiled or failed.
    """
    topic = f"persistent://public/default/spark-{uuid.uuid4().hex[:8]}"
    count = trial.sized(100_000, 50_000)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(broker(trial.url))
        trial.step("messages")
        asyncio.run(fill(url, topic, count))
        spark = stack.enter_context(spark_session(f"local[{CORES}]"))
        for source in (PulsarDataSource, TupleSource, OneRow):
            spark.dataSource.register(source)
        loop = partial(consume, url, topic, count)
        query = partial(read, spark, url, topic)
        works: dict[str, Callable[[], object]] = {
            "one task": partial(query, "pulsar", None),
            "two tasks": partial(query, "pulsar", None, minPartitions="2"),
            "tuples": partial(query, "pulsar-tuples", None),
            "loop": lambda: asyncio.run(loop(None)),
            "Parquet": partial(query, "pulsar", folder / "ours"),
            "loop to Parquet": lambda: asyncio.run(loop(folder / "loop.parquet")),
        }
        subjects: dict[str, Callable[[], Answer]] = {
            name: partial(_timed, work, count) for name, work in works.items()
        }
        missing = no_connector(trial.url)
        if not missing:
            connector = stack.enter_context(
                java_program(
                    *("spark", "Read", url, admin_url(url), f"local[{CORES}]"),
                    options=("-Xmx2g", *_OPENED),
                )
            )
            ask = partial(_connected, connector, topic, count=count)
            subjects["connector"] = partial(ask, _NOOP)
            subjects["connector to Parquet"] = partial(ask, folder / "connector")
        for name, measure in subjects.items():
            trial.step(f"{name}, warming up")
            measure()
        results = trial.in_turns("queries", subjects)
        yield from query_rows(results, missing)
        yield from _stream_rows(trial, spark, url, topic, folder)


#: What is compared, our subject, the other one, its name in the table, and the bar of the rate.
_COMPARED: Final = (
    ("in Arrow batches", "one task", "tuples", "row-wise reader", 3.0),
    ("one task", "one task", "loop", "consumer loop", 1.0),
    ("two tasks", "two tasks", "one task", "one task", 1.5),
    ("one task, to Parquet", "Parquet", "loop to Parquet", "consumer loop", None),
    ("Python source", "one task", "connector", _CONNECTOR, None),
    ("Python source, to Parquet", "Parquet", "connector to Parquet", _CONNECTOR, None),
)


def query_rows(results: Mapping[str, Sequence[Answer]], missing: str) -> Iterator[Row]:
    """Yield the rows of the queries. The note of one says why the connector is `missing`."""
    measured = [each for each in _COMPARED if each[2] in results]
    for what, ours, other, beside, bar in measured:
        yield row_of(
            *(results, ours, other, "per_s"),
            what=f"rate, {what}",
            unit="rows/s",
            beside=beside,
            bar=bar,
            higher_is_better=True,
            chart="Spark source: rate",
            note=missing if other == "loop" else "",
        )
    for what, ours, other, beside, _ in measured:
        if ours == "Parquet" or other == "connector":
            yield row_of(
                *(results, ours, other, "cpu_us"),
                what=f"CPU, {what}",
                unit="us/row",
                beside=beside,
                chart="Spark source: CPU",
                note="all processes: Spark's JVM, its Python workers",
            )


def _stream_rows(
    trial: Trial, spark: SparkSession, url: str, topic: str, folder: Path
) -> Iterator[Row]:
    def stream() -> Any:
        reader = spark.readStream.format("pulsar").option("service.url", url)
        return (
            reader.option("topic", topic)
            .option("startingOffsets", "earliest")
            .option("maxEntriesPerTrigger", "1")
            .load()
        )

    sources: dict[str, Callable[[], Any]] = {
        "ours": stream,
        "a Python source": lambda: spark.readStream.format("one-row").load(),
        "rate": lambda: spark.readStream.format("rate").option("rowsPerSecond", "100").load(),
    }

    def first(make: Callable[[], Any]) -> float:
        return first_row(make(), folder)

    for make in sources.values():
        first(make)  # warm
    times = trial.in_turns(
        "first row", {name: partial(first, make) for name, make in sources.items()}
    )
    for other, what in (
        ("a Python source", "first row of a stream"),
        ("rate", "first row of a stream, beside Spark's own source"),
    ):
        yield Row(
            what=what,
            unit="s",
            ours=tuple(times["ours"]),
            other=tuple(times[other]),
            beside=other,
            chart="Spark source: first row of a stream",
        )


BENCHMARK: Final = Benchmark(
    name="spark_source",
    title="Spark source",
    about=(
        f"Messages of {SIZE} bytes in batches of {BATCH}, read in Spark with {CORES} cores. "
        "StreamNative's connector does not run in Spark 4, which has Scala 2.13 "
        "(NoClassDefFoundError: scala/Serializable), so it runs in Spark 3.5.9, in turns with "
        "ours. A consumer loop in Python receives and acks one by one."
    ),
    seconds=160,
    quick_s=None,
    run=run,
    available=partial(missing_java, build=False),
)
