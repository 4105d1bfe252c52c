"""Producing: the native transport, stock asyncio and the stock synchronous client.

100-byte messages go to a broker in another process, in batches of 1000 and unbatched. `send`
awaited in a gather of 5,000 is compared with stock asyncio, `send_async` with a callback with the
synchronous client. The clients take turns, each run in a new process and on a new topic. The
medians count. The bars: 3 times stock asyncio, and no slower than stock's `send_async`.

    python -m integration.benchmarks.producing [--url URL] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from statistics import median
from typing import Any, Final

import pulsar
import pulsar.asyncio

import pulsar_encore as encore
from pulsar_encore.cli.demo.workload import PAYLOAD, Figures, Stopwatch

from .figures import Row, report
from .processes import Runner, broker

ROUNDS = 3
_MODULE: Final = "integration.benchmarks.producing"  # also when this is `__main__`
GATHERED: Final = 5_000
#: Label -> function, batched messages and unbatched messages in one round.
WAYS: Final = {
    "native gather": ("native_gather", 100_000, 20_000),
    "stock asyncio": ("stock_gather", 30_000, 10_000),
    "native send_async": ("native_callbacks", 200_000, 20_000),
    "stock send_async": ("stock_callbacks", 100_000, 20_000),
}
FACTORS: Final = (
    ("native gather", "stock asyncio", 3.0),
    ("native send_async", "stock send_async", 1.0),
)


def options(batch: int) -> dict[str, Any]:
    """Return the options of every producer."""
    return {
        "batching_enabled": batch > 0,
        "batching_max_messages": max(2, batch),
        "max_pending_messages": 2 * GATHERED,
    }


def run(url: str | None = None, *, rounds: int = ROUNDS) -> list[Row]:
    """Measure both kinds of messages.

    Raises:
        MeasurementError: if a measurement failed.
    """
    rows = []
    with broker(url) as broker_url:
        for batch in (1000, 0):
            rows += rows_of(batch, asyncio.run(_measure(broker_url, rounds, batch)))
    return rows


async def _measure(url: str, rounds: int, batch: int) -> dict[str, Figures]:
    start = Runner(url)
    rounds_of: dict[str, list[Figures]] = {label: [] for label in WAYS}
    for _ in range(rounds):
        for label, (name, batched, single) in WAYS.items():
            count = batched if batch else single
            work = start(_MODULE, name, within_s=60, count=count, batch=batch)
            rounds_of[label].append(await work)
    return {
        label: {key: median(one[key] or 0.0 for one in each) for key in each[0]}
        for label, each in rounds_of.items()
    }


def rows_of(batch: int, medians: dict[str, Figures]) -> list[Row]:
    """Return the rows of one kind. The bars are for batches."""
    kind = f"batches of {batch}" if batch else "unbatched"
    rows = []
    for ours, beside, factor in FACTORS:
        rate, stock = medians[ours]["per_s"] or 0.0, medians[beside]["per_s"] or 0.0
        rows.append(
            Row(
                what=f"produce, {ours}, {kind}",
                unit="msg/s",
                figure=rate,
                other=stock,
                bar=factor * stock if batch else None,
                higher_is_better=True,
                beside=beside,
            )
        )
        cpu_us, stock_us = medians[ours]["cpu_us"] or 0.0, medians[beside]["cpu_us"] or 0.0
        what = f"client CPU, {ours}, {kind}"
        rows.append(Row(what=what, unit="us/msg", figure=cpu_us, other=stock_us, beside=beside))
    return rows


def _figures(count: int, clock: Stopwatch, cpu: float) -> Figures:
    return {"per_s": count / clock(), "cpu_us": (time.process_time() - cpu) / count * 1e6}


async def native_gather(url: str, topic: str, *, count: int, batch: int) -> Figures:
    """Produce with many concurrent `send` calls."""
    async with (
        encore.Client(url, transport="native") as client,
        await client.create_producer(topic, **options(batch)) as producer,
    ):
        await asyncio.gather(*(producer.send(PAYLOAD) for _ in range(GATHERED)))
        clock, cpu = Stopwatch(), time.process_time()
        for _ in range(count // GATHERED):
            await asyncio.gather(*(producer.send(PAYLOAD) for _ in range(GATHERED)))
        return _figures(count, clock, cpu)


async def stock_gather(url: str, topic: str, *, count: int, batch: int) -> Figures:
    """Produce the same way with stock asyncio."""
    client = pulsar.asyncio.Client(url, logger=_quiet())
    producer = await client.create_producer(topic, **options(batch))
    await asyncio.gather(*(producer.send(PAYLOAD) for _ in range(GATHERED)))
    clock, cpu = Stopwatch(), time.process_time()
    for _ in range(count // GATHERED):
        await asyncio.gather(*(producer.send(PAYLOAD) for _ in range(GATHERED)))
    figures = _figures(count, clock, cpu)
    await client.close()
    return figures


async def native_callbacks(url: str, topic: str, *, count: int, batch: int) -> Figures:
    """Produce with `send_async` and a callback. The loop runs now and then."""
    done: list[Any] = []
    async with (
        encore.Client(url, transport="native") as client,
        await client.create_producer(topic, block_if_queue_full=True, **options(batch)) as producer,
    ):

        async def publish(messages: int) -> None:
            for number in range(messages):
                producer.send_async(PAYLOAD, lambda result, _: done.append(result))
                if number % 1000 == 999:
                    await asyncio.sleep(0)
            await producer.flush()

        await publish(GATHERED)
        done.clear()
        clock, cpu = Stopwatch(), time.process_time()
        await publish(count)
        figures = _figures(count, clock, cpu)
    assert len(done) == count
    return figures


def stock_callbacks(url: str, topic: str, *, count: int, batch: int) -> Figures:
    """Produce with the stock synchronous client, which blocks while its queue is full."""
    done: list[Any] = []
    client = pulsar.Client(url, logger=_quiet())
    producer = client.create_producer(topic, block_if_queue_full=True, **options(batch))

    def publish(messages: int) -> None:
        for _ in range(messages):
            producer.send_async(PAYLOAD, lambda result, _: done.append(result))
        producer.flush()
        while len(done) < messages:  # callbacks come a little after the flush
            time.sleep(0.001)

    publish(GATHERED)
    done.clear()
    clock, cpu = Stopwatch(), time.process_time()
    publish(count)
    figures = _figures(count, clock, cpu)
    client.close()
    return figures


def _quiet() -> Any:
    return pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


def main() -> int:
    """Print the table. Return 1 if a bar was missed, else 0."""
    parser = argparse.ArgumentParser(description="Produce.")
    parser.add_argument("--url")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    return report(run(arguments.url, rounds=arguments.rounds))


if __name__ == "__main__":
    sys.exit(main())
