"""Memory, CPU time and threads of 1,000 idle consumers on 1,000 topics in one process.

Each client runs in a process of its own, first with one consumer, then with all. Memory is the
difference between the two processes. The subscriptions are Shared with receiver queues of 1000 (the
default), and are deleted at the end.

    python -m integration.benchmarks.idle_consumers [--url URL] [--consumers 1000]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import psutil
import pulsar
import pulsar.asyncio

import pulsar_encore as encore
from pulsar_encore.cli.demo.scenario import SIDES
from pulsar_encore.cli.demo.workload import Figures, resident_mb

from .figures import Row, report
from .processes import OURS, Runner, broker, fresh_topic

CONSUMERS: Final = 1000
AT_ONCE: Final = 50
OVER_S: Final = 10.0
SETTLE_S: Final = 2.0
#: The bars of the native transport: MB more than one consumer, percent of a core, threads.
MEMORY_MB: Final = 60.0
CPU_PERCENT: Final = 1.0
THREADS: Final = 4
_MODULE: Final = "integration.benchmarks.idle_consumers"


async def _idle(topic: str, count: int, subscribe: Callable[[str], Awaitable[Any]]) -> Figures:
    consumers: list[Any] = []
    names = [f"{topic}-{number}" for number in range(count)]
    for start in range(0, count, AT_ONCE):
        consumers += await asyncio.gather(*map(subscribe, names[start : start + AT_ONCE]))
    gc.collect()
    await asyncio.sleep(SETTLE_S)
    process = psutil.Process()
    clock, cpu = time.perf_counter(), time.process_time()
    await asyncio.sleep(OVER_S)
    busy = (time.process_time() - cpu) / (time.perf_counter() - clock)
    figures: Figures = {
        "mb": resident_mb(),
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


async def _measure(url: str, consumers: int) -> dict[str, Figures]:
    """Measure each client. Return the figures with all consumers, and memory above one
    consumer's.
    """
    runner, topic = Runner(url), fresh_topic()
    found: dict[str, Figures] = {}
    for label, (side, transport) in SIDES.items():
        name = "stock" if side == "stock" else "ours"
        one, many = [
            await runner(
                *(_MODULE, name),
                within_s=300,
                transport=transport,
                topic=topic,
                count=count,
            )
            for count in (1, consumers)
        ]
        found[label] = {**many, "mb": (many["mb"] or 0.0) - (one["mb"] or 0.0)}
    return found


def run(url: str | None = None, *, consumers: int = CONSUMERS) -> list[Row]:
    """Measure all clients, one after the other."""
    with broker(url) as broker_url:
        found = asyncio.run(_measure(broker_url, consumers))
    return [
        Row(
            what=f"{consumers:,} idle consumers {name}: {what}",
            unit=unit,
            figure=found[label][key] or 0.0,
            other=found["stock"][key],
            bar=bar if label == "native" else None,
            beside="stock asyncio",
        )
        for label, name in OURS.items()
        for what, unit, key, bar in (
            ("more memory than one", "MB", "mb", MEMORY_MB),
            ("CPU", "%", "cpu_percent", CPU_PERCENT),
            ("threads", "", "threads", float(THREADS)),
        )
    ]


def main() -> int:
    """Print the table. Return 1 if a bar was missed, else 0."""
    parser = argparse.ArgumentParser(description="Idle consumers.")
    parser.add_argument("--url")
    parser.add_argument("--consumers", type=int, default=CONSUMERS)
    options = parser.parse_args()
    return report(run(options.url, consumers=options.consumers))


if __name__ == "__main__":
    sys.exit(main())
