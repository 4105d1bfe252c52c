"""CPU time over 3 s of an idle process with a million pending nacks, none of them due.

Each measurement is a process of its own, with the nacks or without. The promise is about the
difference. The stock client is measured once, with a tenth of the nacks: it needs minutes to take a
million.

    make bench ONLY=idle_cpu
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from functools import partial
from typing import Final

import pulsar
import pulsar.asyncio

import pulsar_encore as encore
from pulsar_encore.cli.demo.workload import ENTRIES_PER_LEDGER, Figures

from .processes import Runner, broker
from .rows import Row, spread
from .trial import Benchmark, Trial

COUNT: Final = 1_000_000
STOCK_COUNT: Final = 100_000
OVER_S: Final = 3.0
DELAY_S: Final = 3600.0
MEASURABLE_MS: Final = 15.0  # half a percent of a core: the difference between two empty consumers
_MODULE: Final = "integration.benchmarks.idle_cpu"  # also when this is `__main__`
_WITHIN_S: Final = 120


async def ours(url: str, topic: str, *, count: int) -> Figures:
    """Return the CPU ms of this process over `OVER_S`, with `count` nacks pending."""
    async with (
        encore.Client(url) as client,
        await client.subscribe(
            topic,
            "idle",
            consumer_type=encore.ConsumerType.Shared,
            max_unacked_messages=2 * COUNT,
        ) as consumer,
    ):
        for number in range(count):
            ledger, entry = divmod(number, ENTRIES_PER_LEDGER)
            message_id = encore.MessageId(-1, ledger + 1, entry)
            await consumer.negative_acknowledge(message_id, delay=DELAY_S)
        assert consumer.statistics().nacked == count
        return await _idle()


async def stock(url: str, topic: str, *, count: int) -> Figures:
    """Do the same with `pulsar.asyncio`."""
    client = pulsar.asyncio.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = await client.subscribe(
        topic,
        "idle",
        consumer_type=pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=int(DELAY_S * 1000),
    )
    for number in range(count):
        ledger, entry = divmod(number, ENTRIES_PER_LEDGER)
        await consumer.negative_acknowledge(pulsar.MessageId(-1, ledger + 1, entry, -1))
    figures = await _idle()
    await client.close()
    return figures


async def _idle() -> Figures:
    gc.collect()
    await asyncio.sleep(0.5)
    before = time.process_time()
    await asyncio.sleep(OVER_S)
    return {"cpu_ms": (time.process_time() - before) * 1000}


def run(trial: Trial) -> Iterator[Row]:
    """Measure with and without nacks in turns.

    Raises:
        MeasurementError: if a measurement failed.
    """
    with broker(trial.url) as url:
        runner = Runner(url)

        def cpu_ms(name: str, count: int) -> float:
            work = runner(_MODULE, name, within_s=_WITHIN_S, transport="native", count=count)
            return asyncio.run(work)["cpu_ms"] or 0.0

        pairs = trial.alternate(
            f"{COUNT:,} nacks pending",
            partial(cpu_ms, "ours", COUNT),
            partial(cpu_ms, "ours", 0),
        )
        trial.step("the stock client")
        stock_ms = cpu_ms("stock", STOCK_COUNT)
    what = f"CPU over {OVER_S:g} s, {COUNT:,} nacks pending"
    yield Row(
        what=f"{what}, beyond none pending",
        unit="ms",
        ours=tuple(full - empty for full, empty in zip(*pairs, strict=True)),
        bar=MEASURABLE_MS,
    )
    yield Row(
        what=what,
        unit="ms",
        ours=(spread(pairs.ours).median,),
        other=(stock_ms,),
        beside=f"stock asyncio with {STOCK_COUNT:,}",
    )


BENCHMARK: Final = Benchmark(
    name="idle_cpu",
    title="A million pending nacks at rest",
    about=(
        f"CPU time over {OVER_S:g} s of a process with a million nacks that are due in an hour. "
        "The promise is that they cost nothing measurable before they are due."
    ),
    seconds=115,
    quick_s=None,
    run=run,
)
