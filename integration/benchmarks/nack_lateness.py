"""How late nacked messages are redelivered, and where the time goes: 2,000 nacks a second for 5 s.

Another process publishes 2,000 unbatched messages a second. The application nacks each with a delay
of 5 s on its first delivery, so that 10,000 nacks wait, and acks it on the second. A due time is
rounded up to its bucket, and the lateness is counted from there. The parts of the lateness:

- request: until the command is written. It is made by our timer, index and event loop.
- broker: until the message is handed over by the transport. The broker reads and sends it, and the
  transport parses it.
- application: until `receive` returns it.

The development broker holds messages in memory. `--url` measures a real Pulsar. Its part depends on
the number of messages of a bucket, which `--bits` changes.

    python -m integration.benchmarks.nack_lateness [--url URL] [--delay 5] [--bits 8]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import struct
import sys
import time
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, Final
from unittest.mock import patch

import pulsar

import pulsar_encore as encore
from pulsar_encore.cli.demo.workload import Figures
from pulsar_encore.consumer.delivery_handler import DeliveryHandler
from pulsar_encore.core.bucket_width import bucket_edge, precision_bits
from pulsar_encore.transport.interface import Deliveries, each_delivery
from pulsar_encore.transport.native.consumer.native_consumer import NativeConsumer

from .processes import Runner, broker, fresh_topic
from .rows import Row, column, spread_text
from .trial import Benchmark, Trial

PER_S: Final = 2_000
DELAY_S: Final = 5.0
#: How long messages are published after the first of them is due.
MORE_S: Final = 3.0
QUICK_DELAY_S: Final = 1.0
QUICK_MORE_S: Final = 1.0
LATE_MS: Final = 20.0
PARTS: Final = ("rounding", "request", "broker", "application", "lateness")
_BODY: Final = struct.Struct("i96x")
_TICK_S: Final = 0.002


def send(url: str, topic: str, *, count: int, per_s: float) -> Figures:
    """Publish `count` numbered messages at a steady rate."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(
        topic, batching_enabled=False, block_if_queue_full=True, max_pending_messages=5_000
    )
    start, number = time.monotonic(), 0
    while number < count:
        time.sleep(_TICK_S)
        due = min(count, int((time.monotonic() - start) * per_s))
        for each in range(number, due):
            producer.send_async(_BODY.pack(each), None)
        number = due
    producer.flush()
    client.close()
    return {"sent": count}


class _Times:
    """When redeliveries are requested and handed over, by entry id, in monotonic ms.

    Arrays, because a collection of the garbage in tuples and dictionaries would itself be late.
    """

    def __init__(self, count: int) -> None:
        self.requested = array("d", bytes(8 * count))
        self.arrived = array("d", bytes(8 * count))

    def request(self, groups: Iterable[tuple[int, Sequence[int]]]) -> None:
        """Note a command that was written."""
        now = time.monotonic() * 1000
        for _, entries in groups:
            for entry in entries:
                self.requested[entry] = self.requested[entry] or now

    def arrive(self, deliveries: Deliveries) -> None:
        """Note redeliveries that the transport hands over."""
        now = time.monotonic() * 1000
        for each in each_delivery(deliveries):
            if self.requested[each.entry]:
                self.arrived[each.entry] = self.arrived[each.entry] or now

    def observe(self) -> None:
        """Observe all consumers of this process."""
        redeliver, on_deliveries = NativeConsumer.redeliver, DeliveryHandler.on_deliveries

        def redeliver_observed(
            consumer: NativeConsumer, topic: int, groups: Sequence[tuple[int, Sequence[int]]]
        ) -> None:
            redeliver(consumer, topic, groups)
            self.request(groups)

        def on_deliveries_observed(handler: DeliveryHandler, deliveries: Deliveries) -> None:
            self.arrive(deliveries)
            on_deliveries(handler, deliveries)

        patch.object(NativeConsumer, "redeliver", redeliver_observed).start()
        patch.object(DeliveryHandler, "on_deliveries", on_deliveries_observed).start()


async def receive(
    url: str, topic: str, *, count: int, delay_s: float, bits: int | None
) -> dict[str, Any]:
    """Nack every message once. Return p50 and p99 of the parts, in ms."""
    times = _Times(count)
    times.observe()
    due, received = array("d", bytes(8 * count)), array("d", bytes(8 * count))
    left = count
    async with (
        encore.Client(url, transport="native") as client,
        await client.subscribe(
            topic,
            "lateness",
            consumer_type=encore.ConsumerType.Shared,
            initial_position=encore.InitialPosition.Earliest,
            negative_ack_precision_bit_cnt=bits,
        ) as consumer,
    ):
        gc.freeze()
        while left:
            message = await consumer.receive()
            entry = message.message_id().entry_id()
            now = time.monotonic() * 1000
            if not due[entry]:
                due[entry] = now + delay_s * 1000
                await consumer.negative_acknowledge(message, delay=delay_s)
            else:
                if not received[entry]:
                    received[entry] = now
                    left -= 1
                consumer.acknowledge(message)
    width = precision_bits(round(delay_s * 1000), bits)
    edges = [bucket_edge(int(each) + 1, width) for each in due]
    entries = range(count)
    parts = {
        "rounding": [edges[each] - due[each] for each in entries],
        "request": [times.requested[each] - edges[each] for each in entries],
        "broker": [times.arrived[each] - times.requested[each] for each in entries],
        "application": [received[each] - times.arrived[each] for each in entries],
        "lateness": [received[each] - edges[each] for each in entries],
    }
    return {
        f"{part} {share}": sorted(values)[int(place * (count - 1))]
        for part, values in parts.items()
        for share, place in (("p50", 0.5), ("p99", 0.99))
    }


async def _measure(url: str, delay_s: float, more_s: float, bits: int | None) -> Figures:
    runner, topic, here = Runner(url), fresh_topic(), "integration.benchmarks.nack_lateness"
    count = int(PER_S * (delay_s + more_s))
    found, _ = await asyncio.gather(
        runner(
            *(here, "receive"),
            within_s=3 * delay_s + more_s + 60,
            transport="native",
            topic=topic,
            count=count,
            delay_s=delay_s,
            bits=bits,
        ),
        runner(here, "send", within_s=120, topic=topic, count=count, per_s=PER_S),
    )
    return found


def run(trial: Trial, delay_s: float | None = None, bits: int | None = None) -> Iterable[Row]:
    """Measure as often as the trial has pairs; there is no other subject."""
    delay_s = delay_s or (QUICK_DELAY_S if trial.quick else DELAY_S)
    more_s = QUICK_MORE_S if trial.quick else MORE_S
    results = []
    with broker(trial.url) as url:
        for number in range(trial.pairs):
            trial.step(f"nacks of {delay_s:g} s, run {number + 1} of {trial.pairs}")
            results.append(asyncio.run(_measure(url, delay_s, more_s, bits)))
    for part in PARTS:
        for share in ("p50", "p99"):
            yield Row(
                what=f"nacks of {delay_s:g} s at {PER_S:,}/s, {part} {share}",
                unit="ms",
                ours=column(results, f"{part} {share}"),
                bar=LATE_MS if (part, share) == ("lateness", "p99") else None,
                chart="Lateness of redelivery" if share == "p99" else "",
                note="a part of the lateness" if part in PARTS[1:4] else "",
            )


BENCHMARK = Benchmark(
    name="nack_lateness",
    title="Lateness of redelivery",
    about=(
        f"{PER_S:,} messages a second are nacked with a delay of {DELAY_S:g} s, "
        f"so {PER_S * DELAY_S:,.0f} wait. "
        "Lateness is counted from the due time, rounded up to its bucket, until the application "
        "has the message again. Request and application are our parts of it."
    ),
    seconds=105,
    quick_s=None,
    run=run,
)


def main() -> int:
    """Print the rows. Return 1 if the bar was missed, else 0."""
    parser = argparse.ArgumentParser(description="Lateness of redelivery.")
    parser.add_argument("--url")
    parser.add_argument("--delay", type=float)
    parser.add_argument("--bits", type=int, help="negative_ack_precision_bit_cnt")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    trial = Trial(url=options.url, pairs=options.pairs, quick=options.quick)
    rows = list(run(trial, options.delay, options.bits))
    for row in rows:
        print(f"{row.what:52} {spread_text(row.figure):>28} ms  {row.verdict}".rstrip())
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
