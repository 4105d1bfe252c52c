"""Memory, CPU time and threads of 1,000 idle consumers on 1,000 topics, beside the stock client.

Each measurement is a process of its own. It subscribes once, and then to all other topics; the
difference in resident memory counts. The subscriptions are Shared with receiver queues of 1000 (the
default), and are deleted at the end.

    make bench ONLY=idle_consumers
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import psutil
import pulsar
import pulsar.asyncio

import pulsar_encore as encore
from pulsar_encore.cli.demo.workload import Figures, resident_mb

from .processes import Runner, broker, fresh_topic
from .rows import Row, column, row_of
from .trial import Benchmark, Trial

CONSUMERS: Final = 1000
AT_ONCE: Final = 50
OVER_S: Final = 3.0
SETTLE_S: Final = 1.0
#: Promises of the native transport: MB more than one consumer, percent of a core, threads.
MEMORY_MB: Final = 60.0
CPU_PERCENT: Final = 1.0
THREADS: Final = 4.0
_MODULE: Final = "integration.benchmarks.idle_consumers"  # also when this is `__main__`
_WITHIN_S: Final = 300
_MEASURED: Final = (
    ("more memory than one", "MB", "mb", MEMORY_MB),
    ("CPU of an idle process", "% of a core", "cpu_percent", CPU_PERCENT),
    ("threads", "threads", "threads", THREADS),
)


async def _idle(topic: str, count: int, subscribe: Callable[[str], Awaitable[Any]]) -> Figures:
    # Objects that exist once are not measured.
    consumers: list[Any] = [await subscribe(f"{topic}-first")]
    before_mb = resident_mb()
    names = [f"{topic}-{number}" for number in range(1, count)]
    for start in range(0, len(names), AT_ONCE):
        consumers += await asyncio.gather(*map(subscribe, names[start : start + AT_ONCE]))
    await asyncio.sleep(SETTLE_S)
    more_mb = resident_mb() - before_mb
    process = psutil.Process()
    clock, cpu = time.perf_counter(), time.process_time()
    await asyncio.sleep(OVER_S)
    busy = (time.process_time() - cpu) / (time.perf_counter() - clock)
    figures: Figures = {
        "mb": more_mb,
        "cpu_percent": 100 * busy,
        "threads": process.num_threads(),
    }
    for start in range(0, count, AT_ONCE):
        some = consumers[start : start + AT_ONCE]
        await asyncio.gather(*(each.unsubscribe() for each in some))
    return figures


async def stock(url: str, topic: str, *, count: int) -> Figures:
    """Measure `pulsar.asyncio`."""
    client = pulsar.asyncio.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    figures = await _idle(
        topic,
        count,
        lambda name: client.subscribe(name, "idle", consumer_type=pulsar.ConsumerType.Shared),
    )
    await client.close()
    return figures


async def ours(url: str, topic: str, *, count: int) -> Figures:
    """Measure this package, on the transport that the environment names."""
    async with encore.Client(url) as client:

        async def subscribe(name: str) -> encore.Consumer:
            return await client.subscribe(name, "idle", consumer_type=encore.ConsumerType.Shared)

        return await _idle(topic, count, subscribe)


def run(trial: Trial) -> Iterator[Row]:
    """Measure both clients in turns.

    Raises:
        MeasurementError: if a measurement failed.
    """
    consumers = trial.sized(CONSUMERS, 200)
    with broker(trial.url) as url:
        runner = Runner(url)

        def measured(name: str) -> Figures:
            return asyncio.run(
                runner(
                    *(_MODULE, name),
                    within_s=_WITHIN_S,
                    transport="native",
                    topic=fresh_topic(),
                    count=consumers,
                )
            )

        found = trial.in_turns(
            f"{consumers:,} idle consumers",
            {name: lambda name=name: measured(name) for name in ("ours", "stock")},  # type: ignore[misc]
        )
    for what, unit, key, promised in _MEASURED:
        yield row_of(
            *(found, "ours", "stock", key),
            what=f"{consumers:,} idle consumers: {what}",
            unit=unit,
            beside="stock asyncio",
        )
        if consumers == CONSUMERS:
            yield Row(
                what=f"{consumers:,} idle consumers: {what}, the promise",
                unit=unit,
                ours=column(found["ours"], key),
                bar=promised,
            )


BENCHMARK: Final = Benchmark(
    name="idle_consumers",
    title="1,000 idle consumers",
    about=(
        "One process with a Shared consumer on each of 1,000 topics, none of which has a message: "
        f"resident memory beyond one consumer, CPU over {OVER_S:g} s, and threads; native "
        "transport, beside the stock asyncio client."
    ),
    seconds=95,
    quick_s=None,
    run=run,
)
