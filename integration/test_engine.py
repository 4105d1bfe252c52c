"""The stock transport on a real Pulsar: it releases resources, waits for its queue, and decodes
schemas.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from random import Random, randrange
from typing import Any
from uuid import uuid4

import psutil
import pytest

import pulsar_encore as encore
from pulsar_encore.schema import AvroSchema, Integer, Record
from tests.harness.pulsar_server import Server

# looptime's plugin requests a loop before every synchronous test; see the suite's fixtures.
asyncio.set_event_loop(None)

QUIET = encore.ConsoleLogger(encore.LoggerLevel.Error)
EARLIEST = encore.MessageId.earliest
SHARED = encore.ConsumerType.Shared


@pytest.fixture
def topic() -> str:
    return f"engine-{uuid4().hex}"


CREATE: dict[str, Callable[[encore.Client, str], Awaitable[Any]]] = {
    "producer": lambda client, topic: client.create_producer(topic),
    "consumer": lambda client, topic: client.subscribe(topic, "s", consumer_type=SHARED),
    "reader": lambda client, topic: client.create_reader(topic, EARLIEST),
}


def resources_used() -> tuple[int, int]:
    gc.collect()
    process = psutil.Process()
    return process.num_threads(), process.num_fds()


@pytest.mark.parametrize("kind", CREATE)
async def test_a_cancelled_creation_keeps_no_threads_and_files(
    pulsar: Server, topic: str, kind: str
) -> None:
    seed = randrange(2**32)
    print(f"seed {seed}")
    rng = Random(seed)

    async def cancel_creation() -> None:
        async with encore.Client(pulsar.service_url, transport="stock", logger=QUIET) as client:
            creating = asyncio.ensure_future(CREATE[kind](client, topic))
            await asyncio.sleep(rng.uniform(0, 0.02))
            creating.cancel()
            await asyncio.gather(creating, return_exceptions=True)

    await cancel_creation()
    await asyncio.sleep(0.5)
    threads, files = resources_used()
    for _ in range(60):
        await cancel_creation()
    deadline = time.monotonic() + 15
    while (now := resources_used()) and (now[0] > threads or now[1] > files):
        assert time.monotonic() < deadline, f"{now} of threads and files, {(threads, files)} before"
        await asyncio.sleep(0.1)


async def test_chunked_sends_wait_when_the_queue_is_full(pulsar: Server, topic: str) -> None:
    async with (
        encore.Client(pulsar.service_url, transport="stock", logger=QUIET) as client,
        await client.create_producer(
            topic,
            max_pending_messages=2,
            block_if_queue_full=True,
            batching_enabled=False,
            chunking_enabled=True,
        ) as producer,
    ):
        sends = (producer.send(bytes(12 * 1024 * 1024)) for _ in range(6))
        ids = await asyncio.gather(*sends)
    assert ids == sorted(ids) and len(set(ids)) == 6


class Box(Record):  # type: ignore[misc]
    width = Integer()
    height = Integer()


class ReorderedBox(Record):  # type: ignore[misc]
    height = Integer()
    width = Integer()


async def test_values_are_decoded_with_their_schema_version(pulsar: Server, topic: str) -> None:
    box = AvroSchema(Box)
    reordered = AvroSchema(None, {**AvroSchema(ReorderedBox)._schema, "name": "Box"})
    async with encore.Client(pulsar.service_url, transport="stock", logger=QUIET) as client:
        consumer = await client.subscribe(topic, "s", schema=reordered)
        for width, schema in ((1, box), (2, reordered), (3, box)):
            async with await client.create_producer(topic, schema=schema) as producer:
                sizes = {"width": width, "height": -width}
                await producer.send(Box(**sizes) if schema is box else sizes)
        reader = await client.create_reader(topic, EARLIEST, schema=reordered)
        for take in (consumer.receive, reader.read_next):
            async with asyncio.timeout(20):
                got = [(await take()).value() for _ in range(3)]
            assert [(each["width"], each["height"]) for each in got] == [(1, -1), (2, -2), (3, -3)]
