"""The source's readers without Spark, called in the way PySpark calls them."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Sequence
from typing import Any

from pyspark.sql.types import StructType

import pulsar_encore as encore
from pulsar_encore.spark import PulsarDataSource

TOPIC = "persistent://public/default/t"


def source(url: str, **options: Any) -> PulsarDataSource:
    """Return options, with `__` in place of dots."""
    given = {name.replace("__", ".").lower(): str(value) for name, value in options.items()}
    if "topicspattern" not in given:
        given.setdefault("topic", TOPIC)
    return PulsarDataSource({"service.url": url, **given})


def read_ranges(reader: Any, ranges: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the rows of ranges, read by a copy of the reader as in a task."""
    task = pickle.loads(pickle.dumps(reader))
    found: list[dict[str, Any]] = []
    for each in ranges:
        for batch in task.read(pickle.loads(pickle.dumps(each))):
            found += batch.to_pylist()
    return found


def read_batch(url: str, schema: StructType | None = None, **options: Any) -> list[dict[str, Any]]:
    """Read a batch like ``spark.read``."""
    made = source(url, **options)
    reader = made.reader(schema or made.schema())
    return read_ranges(reader, reader.partitions())


class Stream:
    """A query without Spark: its offsets, its batches and their rows."""

    def __init__(self, url: str, checkpoint: dict[str, Any] | None = None, **options: Any) -> None:
        made = source(url, **options)
        self.reader = made.streamReader(made.schema())
        self.offset = checkpoint or self.reader.initialOffset()
        self.rows: list[dict[str, Any]] = []
        self.sizes: list[int] = []

    @property
    def progress(self) -> Any:
        """What the reader knows of the ends of its topics, and when it asked for them."""
        return self.reader._progress()

    def step(self) -> int:
        """Run one batch and return its number of rows."""
        end = self.reader.latestOffset(self.offset, self.reader.getDefaultReadLimit())
        if end == self.offset:
            return 0
        rows = read_ranges(self.reader, self.reader.partitions(self.offset, end))
        self.rows += rows
        self.sizes.append(len(rows))
        self.offset = end
        return len(rows)

    def run(self, most: int = 100) -> Stream:
        """Run batches until no messages are left."""
        for _ in range(most):
            if not self.step():
                return self
        raise AssertionError(f"not done after {most} batches")

    def values(self) -> list[bytes]:
        return [row["value"] for row in self.rows]


def publish(
    url: str,
    *messages: Any,
    topic: str = TOPIC,
    batch: int = 0,
    token: str | None = None,
    **options: Any,
) -> list[encore.MessageId]:
    """Send messages: bytes, or keywords of `Producer.send` with `content`."""

    async def send() -> list[encore.MessageId]:
        login = None if token is None else encore.AuthenticationToken(token)
        async with encore.Client(url, authentication=login) as client:
            producer = await client.create_producer(
                topic,
                batching_enabled=batch > 0,
                batching_max_messages=max(2, batch),
                batching_max_publish_delay_ms=200,
                block_if_queue_full=True,
                **options,
            )
            sending = [
                producer.send(each) if isinstance(each, bytes) else producer.send(**each)
                for each in messages
            ]
            return list(await asyncio.gather(*sending))

    return asyncio.run(send())


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%05d" % each for each in range(start, start + count)]
