"""Durable state after kills, on a real Pulsar: backlogs larger than the queue, both transports."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

import pulsar_encore as encore
from tests.harness.pulsar_server import Server

from .benchmarks import durable_kills

TRANSPORTS = pytest.mark.parametrize("transport", ["native", "stock"])


@pytest.mark.parametrize(
    ("kind", "batch", "transport"),
    [
        ("Shared", 10, "native"),
        ("Shared", 1, "stock"),
        ("KeyShared", 1, "native"),
        ("KeyShared", 10, "stock"),
        ("Exclusive", 10, "native"),
        ("Failover", 1, "stock"),
    ],
)
def test_repeated_kills_lose_no_message_and_no_attempt(
    pulsar: Server, kind: str, batch: int, transport: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "--url",
        pulsar.service_url,
        "--kills",
        "3",
        "--messages",
        "600",
        "--longest-delay",
        "1.5",
    ]
    arguments += ["--type", kind, "--batch", f"{batch}", "--transport", transport]
    assert durable_kills.main(arguments) == 0, capsys.readouterr().out


@TRANSPORTS
async def test_pending_nacks_keep_their_due_times_after_a_kill(
    pulsar: Server, topic: str, transport: str, tmp_path: Path
) -> None:
    """A worker nacks every third message of 3,000, with long and short delays, and is killed."""
    async with encore.Client(pulsar.service_url, transport=transport) as client:
        await (await client.subscribe(topic, "s", encore.ConsumerType.Shared)).close()
        producer = await client.create_producer(
            topic, batching_max_messages=7, max_pending_messages=3_000
        )
        await asyncio.gather(*(producer.send(b"%d" % each) for each in range(3_000)))
        killed = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", WORKER, pulsar.service_url, topic, tmp_path, transport],
            capture_output=True,
            check=False,
        )
        assert killed.returncode == -9, killed.stderr.decode()
        started = float(killed.stdout)
        consumer = await client.subscribe(
            topic,
            "s",
            encore.ConsumerType.Shared,
            receiver_queue_size=500,
            state=encore.RocksState(tmp_path),
        )
        received: dict[int, tuple[float, int]] = {}
        while len(received) < 2_000 + 500:
            message = await consumer.receive(timeout=60)
            number = int(message.data())
            received[number] = time.time() - started, message.redelivery_count()
            await consumer.acknowledge(message)
        with pytest.raises(encore.ReceiveTimeout):
            await consumer.receive(timeout=2)
        assert {number for number in range(3_000) if number not in received} == {
            number for number in range(3_000) if number % 6 == 3
        }
        for number, (after_s, count) in received.items():
            if number % 6 == 0:
                assert after_s >= 15 and count == 1, (number, after_s, count)
        await consumer.unsubscribe()


WORKER = """
import asyncio, os, signal, sys, time
import pulsar_encore as encore
async def main(url, topic, path, transport):
    consumer = await encore.Client(url, transport=transport).subscribe(
        topic, "s", encore.ConsumerType.Shared, receiver_queue_size=500,
        state=encore.RocksState(path, count_attempts="before"),
    )
    begun = time.time()
    for _ in range(3_000):
        message = await consumer.receive(timeout=60)
        number = int(message.data())
        if number % 3 == 0:
            await consumer.negative_acknowledge(message, delay=15 if number % 2 == 0 else 3600)
    print(begun, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main(*sys.argv[1:]))
"""


@TRANSPORTS
async def test_each_batch_message_gets_exactly_its_delivery_attempts(
    pulsar: Server, topic: str, transport: str, tmp_path: Path
) -> None:
    """Each redelivery brings a copy of the whole batch, which must not count for the siblings."""
    rng, attempts = random.Random(3), Counter[int]()
    async with encore.Client(pulsar.service_url, transport=transport) as client:
        consumer = await client.subscribe(
            topic,
            "s",
            encore.ConsumerType.Shared,
            receiver_queue_size=50,
            dead_letter_policy=encore.DeadLetterPolicy(max_redeliver_count=5),
            state=encore.RocksState(tmp_path),
        )
        producer = await client.create_producer(
            topic, batching_max_messages=10, max_pending_messages=300
        )
        await asyncio.gather(*(producer.send(b"%d" % each) for each in range(300)))
        with suppress(encore.ReceiveTimeout):
            while True:
                message = await consumer.receive(timeout=5)
                attempts[int(message.data())] += 1
                await consumer.negative_acknowledge(message, rng.choice([0.05, 0.1, 0.2, 0.3]))
        assert attempts == dict.fromkeys(range(300), 6)
        await consumer.unsubscribe()


@pytest.mark.parametrize(("transport", "batch"), [("native", 10), ("stock", 1)])
async def test_a_dead_lettered_message_gets_no_new_attempts_after_a_kill(
    pulsar: Server, topic: str, transport: str, batch: int, tmp_path: Path
) -> None:
    """Two of 20 messages kill their worker. The second kill loses the ack of the first
    dead-lettered message.
    """
    async with encore.Client(pulsar.service_url, transport="native") as client:
        await (await client.subscribe(topic, "s", encore.ConsumerType.Shared)).close()
        producer = await client.create_producer(
            topic, batching_enabled=batch > 1, batching_max_messages=max(2, batch)
        )
        await asyncio.gather(*(producer.send(b"%d" % each) for each in range(20)))
    deliveries: list[str] = []
    for _ in range(12):
        child = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", VICTIM, pulsar.service_url, topic, tmp_path, transport],
            capture_output=True,
            check=False,
        )
        if child.returncode == 0:
            break
        assert child.returncode == -9, child.stderr.decode()
        deliveries.append(child.stdout.decode().strip())
    assert deliveries == [f"{poison}:{count}" for poison in (10, 15) for count in range(4)]


VICTIM = """
import asyncio, os, signal, sys
import pulsar_encore as encore
async def main(url, topic, path, transport):
    async with encore.Client(url, transport=transport) as client:
        consumer = await client.subscribe(
            topic, "s", encore.ConsumerType.Shared, state=encore.RocksState(path),
            dead_letter_policy=encore.DeadLetterPolicy(max_redeliver_count=3),
        )
        while True:
            try:
                message = await consumer.receive(timeout=3)
            except encore.ReceiveTimeout:
                return
            if message.data() in (b"10", b"15"):
                print(message.data().decode(), message.redelivery_count(), sep=":", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            await asyncio.sleep(0.01)  # meanwhile the letter of the one before is stored
            await consumer.acknowledge(message)
asyncio.run(main(*sys.argv[1:]))
"""
