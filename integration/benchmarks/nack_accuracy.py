"""A nack with a delay of 2 s: when is its redeliver command on the wire?

Read from the development broker's record, in another process: the first time each entry is asked
for, minus the time of the nack, minus the delay; below 0 is early.

    python -m integration.benchmarks.nack_accuracy
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable

import pulsar_encore as encore
from pulsar_encore.cli.demo.stock_side import publish
from pulsar_encore.core.due_index import precision_bits

from .figures import Row, percentile, report
from .processes import fresh_topic
from .recording_broker import Redeliveries, recording_broker

DELAY_S = 2.0
TICK_S = 0.005
LATE_MS = 150.0
#: Nacks a second -> how many.
RATES = {20: 160, 5000: 20_000}
SETTLE_S = 1.0


async def errors_ms(url: str, read: Callable[[], Redeliveries], per_s: int) -> list[float]:
    """How far from its time each redeliver command was, in ms.

    Raises:
        AssertionError: An entry was never asked for.
    """
    count = RATES[per_s]
    topic = fresh_topic()
    await asyncio.to_thread(publish, url, topic, count)
    logger = encore.ConsoleLogger(encore.LoggerLevel.Error)
    async with (
        encore.Client(url, logger=logger) as client,
        await client.subscribe(
            topic,
            "accuracy",
            consumer_type=encore.ConsumerType.Shared,
            initial_position=encore.InitialPosition.Earliest,
            max_unacked_messages=1_000_000,
        ) as consumer,
    ):
        messages = [await consumer.receive() for _ in range(count)]
        nacked: dict[tuple[int, int], float] = {}
        start = time.monotonic()
        for number, message in enumerate(messages):
            ahead = start + number / per_s - time.monotonic()
            if ahead > 0:
                await asyncio.sleep(max(ahead, TICK_S))
            identity = message.message_id()
            nacked[identity.ledger_id(), identity.entry_id()] = time.monotonic() * 1000
            await consumer.negative_acknowledge(message, delay=DELAY_S)
        await asyncio.sleep(DELAY_S + SETTLE_S)
        asked = await asyncio.to_thread(read)
    missing = nacked.keys() - asked.keys()
    assert not missing, f"{len(missing)} of {count} entries were never asked for again"
    return [asked[key] - at_ms - DELAY_S * 1000 for key, at_ms in nacked.items()]


def run() -> list[Row]:
    """Measure every rate."""
    rows: list[Row] = []
    bucket_ms = 1 << precision_bits(round(DELAY_S * 1000))
    for per_s in RATES:
        with recording_broker() as (url, read):
            errors = asyncio.run(errors_ms(url, read, per_s))
        what = f"nack delay {DELAY_S:g} s at {per_s}/s"
        rows += [
            Row(
                what=f"{what}: earliest",
                unit="ms",
                figure=min(errors),
                bar=-float(bucket_ms),
                higher_is_better=True,
            ),
            Row(what=f"{what}: p1", unit="ms", figure=percentile(errors, 0.01)),
            Row(what=f"{what}: p50", unit="ms", figure=percentile(errors, 0.5)),
            Row(what=f"{what}: p99", unit="ms", figure=percentile(errors, 0.99), bar=LATE_MS),
        ]
    return rows


if __name__ == "__main__":
    sys.exit(report(run()))
