"""Sizes that publishers claim, and the memory of unread messages, on a real Pulsar."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore.wire import compress, encode_batch, pb
from tests.harness.admin import Admin
from tests.harness.contract.frame_client import FrameClient
from tests.harness.pulsar_server import Server

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="measures resident memory")

MESSAGES = 20
SIZE = 20_000_000
CODECS = [pb.ZLIB, pb.LZ4, pb.ZSTD, pb.SNAPPY]

# This program runs in a process of its own, so that its peak memory is the consumer's.
_CONSUMER = """
import asyncio, hashlib, json, resource, sys
import pulsar_encore as encore

def now():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()

def peak():
    # Not ru_maxrss: that of a child begins with the memory of the process which started it.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024

async def main(url, topic, messages):
    async with encore.Client(url, transport="native") as client:
        began = now()
        async with client.subscribe(
            topic, "s", initial_position=encore.InitialPosition.Earliest
        ) as consumer:
            largest, quiet = now(), 0
            while quiet < 20:  # until nothing more has come for 2 s
                await asyncio.sleep(0.1)
                quiet = 0 if now() > largest + 1_000_000 else quiet + 1
                largest = max(largest, now())
            unread = peak() - began
            got = []
            while len(got) < messages:
                message = await consumer.receive()
                got.append(hashlib.sha256(message.data()).hexdigest())
                await consumer.acknowledge(message)
            del message
            print(json.dumps({"unread": unread, "all": peak() - began, "got": got}))

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


async def consume_apart(url: str, topic: str, messages: int) -> dict[str, Any]:
    """Run `_CONSUMER`, which subscribes, waits, and then receives everything. Return its output."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _CONSUMER,
        url,
        topic,
        str(messages),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(encore.__file__).parents[1])},
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    figures: dict[str, Any] = json.loads(out)
    return figures


def content(number: int) -> bytes:
    return Random(number).randbytes(100) * (SIZE // 100)


async def test_an_unread_consumer_of_highly_compressed_messages_uses_bounded_memory(
    pulsar: Server, topic: str
) -> None:
    """Each message has 20 MB, and 4 kB on the wire.

    An earlier version decompressed the first 16 messages, whatever their size. Now at most three
    are decompressed (64 MB), and one of them exists twice while it is copied.
    """
    async with (
        encore.Client(pulsar.service_url, transport="native") as client,
        client.create_producer(
            topic,
            compression_type=encore.CompressionType.ZSTD,
            batching_enabled=False,
            send_timeout_millis=120_000,
        ) as producer,
    ):
        for number in range(MESSAGES):
            await producer.send(content(number))
    figures = await consume_apart(pulsar.service_url, topic, MESSAGES)
    assert figures["got"] == [
        hashlib.sha256(content(number)).hexdigest() for number in range(MESSAGES)
    ]
    assert figures["unread"] < 200_000_000, figures["unread"]
    assert figures["all"] < 250_000_000, figures["all"]


def without_long_backoff(client: encore.Client) -> encore.Client:
    """Shorten the backoff between subscribe attempts, because each corrupted entry costs two of
    them.
    """
    transport: Any = client._transport
    transport._settings = dataclasses.replace(transport._settings, max_backoff_s=0.1)
    return client


def false_entries(number: int) -> list[tuple[pb.MessageMetadata, bytes]]:
    """Return entries with false metadata, each with its payload."""
    made: list[tuple[pb.MessageMetadata, bytes]] = []

    def add(payload: bytes, **fields: Any) -> None:
        metadata = pb.MessageMetadata(
            producer_name="liar",
            sequence_id=number + len(made),
            publish_time=int(time.time() * 1000),
            **fields,
        )
        made.append((metadata, payload))

    data = Random(1).randbytes(1000) * 2_000
    batch = encode_batch([(pb.SingleMessageMetadata(), b"x" * 100)] * 5)
    # Each entry costs two subscribe attempts with backoff, so most cases use one codec only.
    for codec in CODECS:
        add(Random(2).randbytes(50), compression=codec, uncompressed_size=200_000_000)
    packed = compress(pb.ZSTD, data)
    add(packed, compression=pb.ZSTD, uncompressed_size=len(data) + 1)
    add(packed, compression=pb.ZSTD, uncompressed_size=2**31 - 1)
    add(packed[: len(packed) // 2], compression=pb.ZSTD, uncompressed_size=len(data))
    small = compress(pb.LZ4, batch)
    add(small, compression=pb.LZ4, uncompressed_size=len(batch), num_messages_in_batch=6)
    add(b"x" * 40, num_messages_in_batch=1_000)
    return made


@pytest.mark.parametrize("kind", [encore.ConsumerType.Shared, encore.ConsumerType.Exclusive])
async def test_only_entries_with_false_metadata_are_dropped(
    pulsar: Server, admin: Admin, topic: str, kind: encore.ConsumerType
) -> None:
    expected: list[bytes] = []
    async with (
        without_long_backoff(encore.Client(pulsar.service_url, transport="native")) as client,
        client.subscribe(topic, "s", kind) as consumer,
        FrameClient(pulsar.service_url) as connection,
    ):
        await connection.produce(topic)
        for at, (metadata, payload) in enumerate(false_entries(0)):
            payload_of_good = b"%d" % at
            plain = pb.MessageMetadata(
                producer_name="liar",
                sequence_id=1_000 + at,
                publish_time=int(time.time() * 1000),
            )
            if at % 3 == 0:  # these are decompressed on the codec thread
                large = payload_of_good + bytes(3_000_000)
                plain.compression, plain.uncompressed_size = pb.ZSTD, len(large)
                await connection.store_entry(plain, compress(pb.ZSTD, large))
                expected.append(large)
            else:
                await connection.store_entry(plain, payload_of_good)
                expected.append(payload_of_good)
            await connection.store_entry(metadata, payload)
        seen: dict[bytes, None] = {}
        async with asyncio.timeout(120):
            while len(seen) < len(expected):
                message = await consumer.receive()
                seen.setdefault(message.data())
                await consumer.acknowledge(message)
        assert sorted(seen) == sorted(expected)
        if kind is encore.ConsumerType.Exclusive:
            assert list(seen) == expected
        async with asyncio.timeout(60):
            while admin.stats(topic)["subscriptions"]["s"]["msgBacklog"]:  # noqa: ASYNC110
                await asyncio.sleep(0.2)


async def test_too_many_partitions_raise_an_error_that_names_max_partitions(
    pulsar: Server, admin: Admin, topic: str
) -> None:
    admin.create_partitioned_topic(topic, 5)
    async with encore.Client(pulsar.service_url, max_partitions=4) as client:
        with pytest.raises(encore.TransportError, match=r"5 partitions.*max_partitions"):
            await client.subscribe(topic, "s")
        with pytest.raises(encore.TransportError, match=r"5 partitions.*max_partitions"):
            await client.create_producer(topic)
    async with (
        encore.Client(pulsar.service_url, max_partitions=5) as client,
        client.create_producer(topic) as producer,
    ):
        await producer.send(b"x")


@pytest.mark.parametrize("total", ["claimed", "not claimed"])
@pytest.mark.parametrize("kind", [encore.ConsumerType.Shared, encore.ConsumerType.Exclusive])
async def test_a_chunked_message_over_max_uncompressed_size_is_acked(
    pulsar: Server,
    admin: Admin,
    topic: str,
    kind: encore.ConsumerType,
    total: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An earlier version requested it again three times a second, for ever."""
    data = Random(3).randbytes(12_000_000)
    async with (
        encore.Client(
            pulsar.service_url, transport="native", max_uncompressed_size=8_000_000
        ) as client,
        client.subscribe(topic, "s", kind) as consumer,
        FrameClient(pulsar.service_url) as connection,
    ):
        await connection.produce(topic)
        for at in range(3):
            metadata = pb.MessageMetadata(
                producer_name="p",
                sequence_id=at,
                publish_time=int(time.time() * 1000),
                uuid="big",
                chunk_id=at,
                num_chunks_from_msg=3,
                total_chunk_msg_size=len(data) if total == "claimed" else 0,
            )
            await connection.store_entry(metadata, data[at * 4_000_000 : (at + 1) * 4_000_000])
        small = pb.MessageMetadata(
            producer_name="p", sequence_id=3, publish_time=int(time.time() * 1000)
        )
        await connection.store_entry(small, b"behind")
        message = await consumer.receive(timeout=30)
        assert message.data() == b"behind"
        await consumer.acknowledge(message)
        async with asyncio.timeout(30):
            while admin.stats(topic)["subscriptions"]["s"]["msgBacklog"]:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        assert admin.stats(topic)["subscriptions"]["s"]["msgOutCounter"] <= 7
    (line,) = [each.getMessage() for each in caplog.records if "chunked message" in each.message]
    assert "max_uncompressed_size" in line and topic in line
