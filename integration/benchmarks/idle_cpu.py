"""CPU time over 3 s of a process with a million pending nacks, none of them due.

A consumer of the same topic without nacks runs in another process at the same time. The difference
counts, as the median of the rounds.

    python -m integration.benchmarks.idle_cpu [--url URL]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import sys
import time

import pulsar_encore as encore
from pulsar_encore.cli.demo.workload import ENTRIES_PER_LEDGER, Figures

from .figures import Row, report
from .processes import Runner, broker

ROUNDS = 3
COUNT = 1_000_000
OVER_S = 3.0
DELAY_S = 3600.0
MEASURABLE_MS = 15.0  # half a percent of a core: the difference between two empty consumers


async def idle(url: str, topic: str, *, count: int) -> Figures:
    """Return the CPU ms of this process over `OVER_S`, with `count` nacks pending."""
    logger = encore.ConsoleLogger(encore.LoggerLevel.Error)
    async with (
        encore.Client(url, transport="stock", logger=logger) as client,
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
        gc.collect()
        await asyncio.sleep(0.5)
        before = time.process_time()
        await asyncio.sleep(OVER_S)
        return {"cpu_ms": (time.process_time() - before) * 1000}


def run(url: str | None = None, *, rounds: int = ROUNDS) -> list[Row]:
    """Measure in pairs."""

    async def pairs(broker_url: str) -> list[tuple[float, float]]:
        runner = Runner(broker_url)
        found = []
        for _ in range(rounds):
            full, empty = await asyncio.gather(
                *(
                    runner("integration.benchmarks.idle_cpu", "idle", within_s=60, count=count)
                    for count in (COUNT, 0)
                )
            )
            found.append((full["cpu_ms"] or 0.0, empty["cpu_ms"] or 0.0))
        return found

    with broker(url) as broker_url:
        found = asyncio.run(pairs(broker_url))
    full, empty = (statistics.median(column) for column in zip(*found, strict=True))
    return [
        Row(
            what=f"CPU over {OVER_S:g} s, {COUNT:,} nacks pending",
            unit="ms",
            figure=full,
            other=empty,
            bar=empty + MEASURABLE_MS,
            beside="none pending",
        )
    ]


def main() -> int:
    """Print the table. Return 1 if a bar was missed, else 0."""
    parser = argparse.ArgumentParser(description="Idle CPU with pending nacks.")
    parser.add_argument("--url")
    return report(run(parser.parse_args().url))


if __name__ == "__main__":
    sys.exit(main())
