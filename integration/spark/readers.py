"""The source's readers, driven as PySpark drives them: what needs a broker and no JVM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from harness.pulsar_server import Server
from pulsar_encore.spark import PulsarDataSource

SMALL: Final = {"pulsar__reader__receiverQueueSize": 10, "maxRecordsPerBatch": 10}
"""Options by which most of a range is still at the broker when its first rows are here."""


def source(server: Server, topic: str, **options: Any) -> PulsarDataSource:
    """Options with `__` for dots; `admin_url=False` leaves that out."""
    given = {"service.url": server.service_url, "topic": topic}
    if options.pop("admin_url", True):
        given["admin.url"] = server.admin_url
    given |= {name.replace("__", ".").lower(): str(value) for name, value in options.items()}
    return PulsarDataSource(given)


def planned(server: Server, topic: str, **options: Any) -> tuple[Any, list[Any]]:
    """A batch's reader, and its ranges."""
    made = source(server, topic, **options)
    reader = made.reader(made.schema())
    return reader, reader.partitions()


def rows_of(reader: Any, ranges: list[Any]) -> list[dict[str, Any]]:
    """As tasks, one after the other."""
    return [row for each in ranges for batch in reader.read(each) for row in batch.to_pylist()]


def read(server: Server, topic: str, **options: Any) -> list[dict[str, Any]]:
    """A batch."""
    return rows_of(*planned(server, topic, **options))


@contextmanager
def slow_read(server: Server, topic: str, **options: Any) -> Iterator[Iterator[list[bytes]]]:
    """A batch as one task; values in small batches, as they are asked for."""
    reader, [whole] = planned(server, topic, **SMALL, **options)
    batches = reader.read(whole)
    try:
        yield ([row["value"] for row in batch.to_pylist()] for batch in batches)
    finally:
        batches.close()


class Query:
    """A stream without Spark.

    Args:
        server: To read from.
        topic: Its name.
        checkpoint: The offset to go on from; None begins anew.
        options: As of `source`.
    """

    def __init__(
        self, server: Server, topic: str, checkpoint: dict[str, Any] | None = None, **options: Any
    ) -> None:
        made = source(server, topic, latestOffsetPollMs=0, **options)
        self.reader = made.streamReader(made.schema())
        self.offset = checkpoint or self.reader.initialOffset()
        self.sizes: list[int] = []

    def run(self) -> list[bytes]:
        """Batches until there is nothing more; their values."""
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
        """Give back the subscription."""
        self.reader.stop()
