"""Topics with numbered messages, and checks of the messages that arrived."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

import pulsar_encore as encore
from tests.harness.pulsar_server import Server

KILLS: Final = int(os.environ.get("ENCORE_KILLS", "2"))
"""Of a test that kills. What is promised was seen with 6; each costs a start of Spark."""


def body(number: int) -> bytes:
    return b"%08d" % number


def publish(
    server: Server, topic: str, numbers: Iterable[int], *, batch: int = 0, **options: Any
) -> list[encore.MessageId]:
    """Send messages, in batches of `batch` if it is not 0."""

    async def send() -> list[encore.MessageId]:
        async with encore.Client(server.service_url) as client:
            producer = await client.create_producer(
                topic,
                batching_enabled=batch > 0,
                batching_max_messages=max(2, batch),
                batching_max_publish_delay_ms=100,
                block_if_queue_full=True,
                **options,
            )
            return list(await asyncio.gather(*(producer.send(body(number)) for number in numbers)))

    return asyncio.run(send())


def with_options(reader: Any, server: Server, topic: str, **options: Any) -> Any:
    """Return `spark.read` or `spark.readStream` with options; `__` in a name stands for a dot."""
    reader = (
        reader.format("pulsar")
        .option("service.url", server.service_url)
        .option("admin.url", server.admin_url)
        .option("topic", topic)
    )
    for name, value in options.items():
        reader = reader.option(name.replace("__", "."), str(value))
    return reader


def values(frame: Any) -> list[bytes]:
    return [bytes(row["value"]) for row in frame.select("value").collect()]


def duplicates_in(found: Iterable[bytes]) -> dict[bytes, int]:
    return {value: count for value, count in Counter(found).items() if count > 1}
