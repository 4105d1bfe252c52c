"""Latency from `send` to `receive` at 1,000 messages per second: both transports and stock asyncio.

The sender is a process of its own (stock client, unbatched) and writes the time into the message.
The monotonic clock of the system is the same in all processes. The clients take turns, and the
medians over the rounds count.

    python -m integration.benchmarks.latency [--url URL] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import struct
import sys
import time
from typing import Any

import pulsar
import pulsar.asyncio

import pulsar_encore as encore
from pulsar_encore.cli.demo.scenario import SIDES
from pulsar_encore.cli.demo.workload import Figures

from .figures import Row, percentile, report
from .processes import OURS, Runner, broker, fresh_topic

ROUNDS = 3
PER_S = 1000
COUNT = 4000
WARM_UP = 1000
#: The bars: how much slower than stock asyncio each transport may be, in ms.
ALLOWED_MS = {"native": 0.0, "encore": 2.0}


def send(url: str, topic: str, *, count: int, per_s: float) -> Figures:
    """Send `count` messages at a steady rate."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(topic, batching_enabled=False)
    start = time.monotonic() + 0.5
    for number in range(count):
        time.sleep(max(0.0, start + number / per_s - time.monotonic()))
        producer.send_async(struct.pack("d", time.monotonic()) + bytes(92), None)
    producer.flush()
    client.close()
    return {"sent": count}


async def _latencies(consumer: Any, count: int) -> Figures:
    late_ms: list[float] = []
    for _ in range(count):
        message = await consumer.receive()
        now = time.monotonic()
        late_ms.append((now - struct.unpack_from("d", message.data())[0]) * 1000)
        await consumer.acknowledge(message)
    measured_ms = late_ms[WARM_UP:]
    return {"p50": percentile(measured_ms, 0.5), "p99": percentile(measured_ms, 0.99)}


async def stock(url: str, topic: str, *, count: int) -> Figures:
    """Receive with `pulsar.asyncio`."""
    client = pulsar.asyncio.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = await client.subscribe(
        topic,
        "latency",
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
    )
    figures = await _latencies(consumer, count)
    await client.close()
    return figures


async def ours(url: str, topic: str, *, count: int) -> Figures:
    """Receive with this package, on the transport that the environment names."""
    async with (
        encore.Client(url) as client,
        await client.subscribe(
            topic,
            "latency",
            consumer_type=encore.ConsumerType.Shared,
            initial_position=encore.InitialPosition.Earliest,
        ) as consumer,
    ):
        return await _latencies(consumer, count)


async def _round(run: Runner, side: str) -> Figures:
    topic = fresh_topic()
    here = "integration.benchmarks.latency"
    name, transport = ("stock", "stock") if side == "stock" else ("ours", SIDES[side][1])
    received, _ = await asyncio.gather(
        run(here, name, within_s=60, transport=transport, topic=topic, count=COUNT),
        run(here, "send", within_s=60, topic=topic, count=COUNT, per_s=PER_S),
    )
    return received


def run(url: str | None = None, *, rounds: int = ROUNDS) -> list[Row]:
    """Measure, and take the medians over the rounds."""

    async def alternate(broker_url: str) -> dict[str, list[Figures]]:
        runner = Runner(broker_url)
        results: dict[str, list[Figures]] = {side: [] for side in SIDES}
        for _ in range(rounds):
            for side, each in results.items():
                each.append(await _round(runner, side))
        return results

    with broker(url) as broker_url:
        results = asyncio.run(alternate(broker_url))
    rows = []
    for label, name in OURS.items():
        for share in ("p50", "p99"):
            figure, other = (
                statistics.median(each[share] or 0.0 for each in results[side])
                for side in (label, "stock")
            )
            rows.append(
                Row(
                    what=f"latency at {PER_S:,} msg/s {name}, {share}",
                    unit="ms",
                    figure=figure,
                    other=other,
                    bar=other + ALLOWED_MS[label],
                    beside="stock asyncio",
                )
            )
    return rows


def main() -> int:
    """Print the table. Return 1 if a bar was missed, else 0."""
    parser = argparse.ArgumentParser(description="Delivery latency.")
    parser.add_argument("--url")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    return report(run(options.url, rounds=options.rounds))


if __name__ == "__main__":
    sys.exit(main())
