"""Latency from `send` to `receive` at 1,000 messages per second: both transports and stock asyncio.

The sender is a process of its own (stock client, unbatched) and writes the time into the message.
The monotonic clock of the system is the same in all processes. The clients take turns.

    make bench ONLY=latency
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import pulsar
import pulsar.asyncio

import pulsar_encore as encore
from pulsar_encore.cli.demo.measurement import MeasurementError
from pulsar_encore.cli.demo.scenario import SIDES
from pulsar_encore.cli.demo.workload import Figures

from .processes import OURS, Runner, broker, fresh_topic
from .rows import Row, percentile, row_of
from .trial import Benchmark, Trial

PER_S: Final = 1000
ATTEMPTS: Final = 3
_ONCE: Final[dict[str, Any]] = {"within_s": 60, "attempts": 1}
COUNT: Final = 2500
WARM_UP: Final = 1000
#: The bars: the ratio to stock asyncio. Our consumer over the stock client needs a thread's turn.
BARS: Final = {"native": 1.0, "encore": None}


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


def _latency(run: Runner, count: int, side: str) -> Figures:
    async def measure() -> Figures:
        topic = fresh_topic()
        here = "integration.benchmarks.latency"
        name, transport = ("stock", "stock") if side == "stock" else ("ours", SIDES[side][1])
        received, _ = await asyncio.gather(
            run(here, name, transport=transport, topic=topic, count=count, **_ONCE),
            run(here, "send", topic=topic, count=count, per_s=PER_S, **_ONCE),
        )
        return received

    # Both again, on a fresh topic: the queue of the sender may have been full, or one has crashed.
    for _ in range(ATTEMPTS - 1):
        try:
            return asyncio.run(measure())
        except MeasurementError as error:
            if not error.lost:
                raise
    return asyncio.run(measure())


def run(trial: Trial) -> Iterator[Row]:
    """Measure all sides in turns."""
    count = trial.sized(COUNT, COUNT // 2)
    with broker(trial.url) as url:
        results = trial.in_turns(
            "latency", {side: partial(_latency, Runner(url), count, side) for side in SIDES}
        )
    for label, name in OURS.items():
        for share in ("p50", "p99"):
            yield row_of(
                *(results, label, "stock", share),
                what=f"{name}, {share}",
                unit="ms",
                bar=BARS[label],
                beside="stock asyncio",
            )


BENCHMARK: Final = Benchmark(
    name="latency",
    title="Latency at 1,000 messages per second",
    about=(
        "Time from send to receive. The sender is a process of its own with the stock client. "
        "The stock synchronous client is not compared: it has a thread of its own to wait in."
    ),
    seconds=95,
    quick_s=None,
    run=run,
)
