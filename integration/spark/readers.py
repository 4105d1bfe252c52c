"""Drive the source's readers as PySpark does, for tests that need a broker but no JVM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pulsar_encore.spark import PulsarDataSource
from tests.harness.pulsar_server import Server

SMALL: Final = {"pulsar__reader__receiverQueueSize": 10, "maxRecordsPerBatch": 10}
"""Options by which most of a range is still at the broker when its first rows are here."""


def source(server: Server, topic: str, **options: Any) -> PulsarDataSource:
    """Return a source. `__` in an option stands for a dot; `admin_url=False` omits that option."""
    source_options = {"service.url": server.service_url, "topic": topic}
    if options.pop("admin_url", True):
        source_options["admin.url"] = server.admin_url
    source_options |= {
        name.replace("__", ".").lower(): str(value) for name, value in options.items()
    }
    return PulsarDataSource(source_options)


def planned(server: Server, topic: str, **options: Any) -> tuple[Any, list[Any]]:
    """Return the reader of a batch, and its ranges."""
    reader_source = source(server, topic, **options)
    reader = reader_source.reader(reader_source.schema())
    return reader, reader.partitions()


def rows_of(reader: Any, ranges: list[Any]) -> list[dict[str, Any]]:
    """Read ranges one after the other, as tasks do."""
    return [row for each in ranges for batch in reader.read(each) for row in batch.to_pylist()]


def read(server: Server, topic: str, **options: Any) -> list[dict[str, Any]]:
    """Read a batch."""
    return rows_of(*planned(server, topic, **options))


@contextmanager
def slow_read(server: Server, topic: str, **options: Any) -> Iterator[Iterator[list[bytes]]]:
    """Yield the values of a batch in small lists, read by one task on demand."""
    reader, [whole] = planned(server, topic, **SMALL, **options)
    batches = reader.read(whole)
    try:
        yield ([row["value"] for row in batch.to_pylist()] for batch in batches)
    finally:
        batches.close()


class Query:
    """A stream without Spark.

    Args:
        server: The server to read from.
        topic: Name of the topic.
        checkpoint: The offset to continue from; None starts a new query.
        options: As for `source`.
    """

    def __init__(
        self, server: Server, topic: str, checkpoint: dict[str, Any] | None = None, **options: Any
    ) -> None:
        reader_source = source(server, topic, latestOffsetPollMs=0, **options)
        self.reader = reader_source.streamReader(reader_source.schema())
        self.offset = checkpoint or self.reader.initialOffset()
        self.sizes: list[int] = []

    def run(self) -> list[bytes]:
        """Run batches until there are no more messages. Return their values."""
        found: list[bytes] = []
        while True:
            end = self.reader.latestOffset(self.offset, self.reader.getDefaultReadLimit())
            if end == self.offset:
                return found
            rows = rows_of(self.reader, self.reader.partitions(self.offset, end))
            found += [row["value"] for row in rows]
            self.sizes.append(len(rows))
            self.offset = end

    def stop(self) -> None:
        """Close the subscription."""
        self.reader.stop()
