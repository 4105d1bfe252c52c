"""Leases after the end of a process, on a real Pulsar."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import pulsar_encore as encore
from tests.harness.admin import Admin
from tests.harness.pulsar_server import Server

_CRASHING_PROGRAM = """
import asyncio, json, os, sys
import pulsar_encore as encore

async def main(url, topic, path, transport, kind):
    client = encore.Client(url, transport=transport)
    consumer = await client.subscribe(
        topic, "s", encore.ConsumerType[kind], initial_position=encore.InitialPosition.Earliest,
        receiver_queue_size=50, state=encore.RocksState(path, count_attempts="before"),
    )
    leases = []
    while len(leases) < 200:
        leases += await consumer.pop(50, lease=9)
    told = {}
    for lease in leases:
        number = int(lease.message.data())
        if number % 4 == 0:
            await lease.ack()
        elif number % 4 != 3:
            told[number] = lease.handle
    await asyncio.sleep(1)  # acks are sent
    print(json.dumps(told), flush=True)
    os._exit(1)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("transport", "kind", "batch"),
    [
        ("native", "Shared", 10),
        ("stock", "KeyShared", 1),
    ],
)
async def test_leases_survive_the_process(
    pulsar: Server, admin: Admin, topic: str, tmp_path: Path, transport: str, kind: str, batch: int
) -> None:
    """200 messages: acked before the end, acked or extended by handle after it, or left to
    expire.
    """
    count, path = 200, tmp_path / "state"
    async with encore.Client(pulsar.service_url, transport=transport) as client:
        producer = await client.create_producer(
            topic,
            batching_enabled=batch > 1,
            batching_max_messages=max(batch, 2),
            batching_type=encore.BatchingType.KeyBased,
        )
        await asyncio.gather(
            *(producer.send(b"%d" % each, partition_key=f"k{each % 20}") for each in range(count))
        )
        consumer = await client.subscribe(
            topic, "s", encore.ConsumerType[kind], initial_position=encore.InitialPosition.Earliest
        )
        await consumer.close()
        process = await asyncio.to_thread(
            subprocess.run,
            [
                sys.executable,
                "-c",
                _CRASHING_PROGRAM,
                pulsar.service_url,
                topic,
                str(path),
                transport,
                kind,
            ],
            capture_output=True,
            text=True,
            timeout=60,
        )
        ended_at = time.monotonic()
        assert process.returncode == 1, process.stderr
        handles = {int(number): handle for number, handle in json.loads(process.stdout).items()}
        assert len(handles) == count // 2

        # Two consumers, because a message may go to either.
        consumers = [
            await client.subscribe(
                topic,
                "s",
                encore.ConsumerType[kind],
                receiver_queue_size=50,
                state=encore.RocksState(path, count_attempts="before"),
            )
            for _ in range(2)
        ]
        received: dict[int, float] = {}
        attempts: set[int] = set()
        all_received = asyncio.Event()

        async def pop_and_ack(consumer: encore.Consumer) -> None:
            while True:
                for lease in await consumer.pop(10, lease=60, wait=1):
                    number = int(lease.message.data())
                    assert number not in received
                    received[number] = time.monotonic() - ended_at
                    attempts.add(lease.attempt)
                    await lease.ack()
                    if len(received) == count // 2:
                        all_received.set()

        tasks = [asyncio.create_task(pop_and_ack(each)) for each in consumers]
        await asyncio.sleep(2)
        extending = time.monotonic() - ended_at
        for number, handle in handles.items():
            lease = await consumers[number % 2].lease(handle)
            assert lease.attempt == 1 and lease.message_id.topic
            await (lease.ack() if number % 4 == 1 else lease.extend(10))
        extended = time.monotonic() - ended_at
        async with asyncio.timeout(60):
            await all_received.wait()
        await asyncio.sleep(1)
        for taker in tasks:
            taker.cancel()
        assert sorted(received) == [each for each in range(count) if each % 4 in (2, 3)]
        # Leases without a handle are redelivered at once, and extended ones not before their
        # extended end.
        assert max(at for number, at in received.items() if number % 4 == 3) < extended + 5
        assert min(at for number, at in received.items() if number % 4 == 2) > extending + 9.9
        assert attempts == {2}
        for each in consumers:
            await each.close()
        stats = await asyncio.to_thread(admin.subscription_stats, topic, "s")
        assert stats["msgBacklog"] == 0
