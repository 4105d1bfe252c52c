"""Producing: the native transport, stock asyncio and the stock synchronous client.

100-byte messages go to a broker in another process, in batches of 1000 and unbatched. `send`
awaited in a gather of 5,000 is compared with stock asyncio, `send_async` with a callback with the
synchronous client. The clients take turns, each run in a new process and on a new topic. The bars:
3 times stock asyncio, and no slower than stock's `send_async`.

    make bench ONLY=producing
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import pulsar
import pulsar.asyncio

import pulsar_encore as encore
from pulsar_encore.cli.demo.workload import PAYLOAD, Figures, Stopwatch

from .processes import Runner, broker
from .rows import Row, row_of
from .trial import Benchmark, Trial

_MODULE: Final = "integration.benchmarks.producing"  # also when this is `__main__`
GATHERED: Final = 5_000
#: Label -> function, batched messages and unbatched messages in one measurement.
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


def run(trial: Trial) -> Iterator[Row]:
    """Measure both kinds of messages.

    Raises:
        MeasurementError: if a measurement failed.
    """
    with broker(trial.url) as url:
        for batch in (1000, 0):
            yield from rows_of(batch, _measured(trial, url, batch))


def _measured(trial: Trial, url: str, batch: int) -> dict[str, list[Figures]]:
    runner = Runner(url)

    def measure(name: str, batched: int, single: int) -> Figures:
        count = batched if batch else single
        count = trial.sized(count, max(GATHERED, count // 4))
        return asyncio.run(runner(_MODULE, name, within_s=60, count=count, batch=batch))

    return trial.in_turns(
        _kind(batch), {label: partial(measure, *way) for label, way in WAYS.items()}
    )


def _kind(batch: int) -> str:
    return f"batches of {batch}" if batch else "unbatched"


def rows_of(batch: int, results: Mapping[str, list[Figures]]) -> Iterator[Row]:
    """Yield the rows of one kind. The bars are for batches."""
    for ours, beside, factor in FACTORS:
        for key, unit, title in (
            ("per_s", "msg/s", "messages per second"),
            ("cpu_us", "us/msg", "CPU"),
        ):
            yield row_of(
                *(results, ours, beside, key),
                what=f"{ours}, {_kind(batch)}" + ("" if key == "per_s" else ", CPU"),
                unit=unit,
                bar=factor if batch and key == "per_s" else None,
                higher_is_better=key == "per_s",
                chart=f"Producing: {title}",
            )


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


BENCHMARK: Final = Benchmark(
    name="producing",
    title="Producing",
    about=(
        "Messages of 100 bytes, in batches of 1000 and unbatched: 5,000 concurrent sends beside "
        "stock asyncio, and send_async with a callback beside the stock synchronous client."
    ),
    seconds=75,
    quick_s=25,
    run=run,
)
