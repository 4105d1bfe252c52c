"""Receive and ack in one task: both transports, stock asyncio and the stock synchronous client.

Messages come from a broker in another process: 100 bytes in producer batches of 1000 and of 10, and
unbatched 100 bytes and 10 kB. They are received one at a time, and in lists: `batch_receive`, and
one `acknowledge` for each list. The stock synchronous client cannot ack a list, and acks each
message. The clients take turns, each run in a new process and on a new subscription.

    make bench ONLY=throughput
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pulsar

import pulsar_encore as encore
from pulsar_encore.cli.demo.throughput import WAYS
from pulsar_encore.cli.demo.workload import Figures, Stopwatch

from .processes import OURS, Runner, broker, fresh_topic
from .rows import Row
from .trial import Benchmark, Trial

_MODULE: Final = "integration.benchmarks.throughput"  # also when this is `__main__`
_WITHIN_S: Final = 60
#: `batch_receive` returns this many messages (500), or those that are there after 10 ms.
LISTS: Final = (500, 0, 10)
#: Label -> module, function, transport, messages of one measurement.
ALL_WAYS: Final = {
    **WAYS,
    "native, lists": (_MODULE, "native_lists", "native", 300_000),
    "stock sync, lists": (_MODULE, "stock_lists", "stock", 200_000),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """One kind of topic and its bars.

    Attributes:
        batch: Messages in an entry; 0 for unbatched messages.
        size: Bytes of a message.
        messages: Number of messages.
        bars: The least ratio of rates, by our way and the one it is compared with.
        quick: Part of a quick run.
    """

    batch: int
    size: int
    messages: int
    bars: Mapping[tuple[str, str], float] = field(default_factory=dict)
    quick: bool = False

    def __str__(self) -> str:
        size = f"{self.size:,} B"
        return f"{size}, batches of {self.batch}" if self.batch else f"{size}, unbatched"


KINDS: Final = (
    Kind(
        batch=1000,
        size=100,
        messages=301_000,
        bars={
            ("native", "stock asyncio"): 15.0,
            ("native", "stock sync"): 2.0,
            ("encore", "stock asyncio"): 6.0,
            ("encore", "stock sync"): 1.0,
        },
        quick=True,
    ),
    Kind(batch=10, size=100, messages=101_000),
    Kind(batch=0, size=100, messages=101_000),
    Kind(batch=0, size=10_000, messages=11_000),
)
#: Label -> its name in the table, and the ways it is compared with.
COMPARED: Final = {
    **{label: (name, ("stock asyncio", "stock sync")) for label, name in OURS.items()},
    "native, lists": ("native, lists", ("stock asyncio", "stock sync", "stock sync, lists")),
}


def run(trial: Trial) -> Iterator[Row]:
    """Measure every kind of topic.

    Raises:
        MeasurementError: if a measurement failed.
    """
    for kind in KINDS:
        if kind.quick or not trial.quick:
            yield from rows_of(kind, _rates(trial, kind))


def _rates(trial: Trial, kind: Kind) -> dict[str, list[float]]:
    ways = WAYS if trial.quick else ALL_WAYS
    messages = trial.sized(kind.messages, kind.messages // 3)
    with broker(trial.url) as url:
        runner, topic = Runner(url), fresh_topic()
        sizes = {"count": messages, "batch": kind.batch, "size": kind.size}
        asyncio.run(runner("stock", "fill", within_s=_WITHIN_S, topic=topic, **sizes))

        def rate(side: str, name: str, transport: str, count: int) -> float:
            figures = runner.consume(
                side,
                name,
                topic=topic,
                count=min(trial.sized(count, count // 3), messages - 1),
                within_s=_WITHIN_S,
                transport=transport,
            )
            return figures["per_s"] or 0.0

        return trial.in_turns(
            str(kind), {label: partial(rate, *way) for label, way in ways.items()}
        )


def rows_of(kind: Kind, rates: Mapping[str, list[float]]) -> Iterator[Row]:
    """Yield the rows of one kind of topic."""
    for label, (name, compared) in COMPARED.items():
        for beside in compared:
            if label in rates and beside in rates:
                yield Row(
                    what=f"{name}, {kind}",
                    unit="msg/s",
                    ours=tuple(rates[label]),
                    other=tuple(rates[beside]),
                    bar=kind.bars.get((label, beside)),
                    higher_is_better=True,
                    beside=beside,
                    chart=f"Receive and ack, {kind}: messages per second",
                )


async def native_lists(url: str, topic: str, *, count: int, subscription: str) -> Figures:
    """Receive and ack several messages with each call."""
    options: dict[str, Any] = {
        "consumer_type": encore.ConsumerType.Shared,
        "initial_position": encore.InitialPosition.Earliest,
        "batch_receive_policy": encore.BatchReceivePolicy(*LISTS),
    }
    async with (
        encore.Client(url) as client,
        await client.subscribe(topic, subscription, **options) as consumer,
    ):
        first = await consumer.batch_receive()
        await consumer.acknowledge(first)
        clock, cpu, done = Stopwatch(), time.process_time(), 0
        while done + len(first) < count:
            messages = await consumer.batch_receive()
            await consumer.acknowledge(messages)
            done += len(messages)
        return {"per_s": done / clock(), "cpu_us": (time.process_time() - cpu) / done * 1e6}


def stock_lists(url: str, topic: str, *, count: int, subscription: str) -> Figures:
    """Receive lists with the stock synchronous client, and ack each message."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe(
        topic,
        subscription,
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        batch_receive_policy=pulsar.ConsumerBatchReceivePolicy(*LISTS),
    )
    first = consumer.batch_receive()
    for message in first:
        consumer.acknowledge(message)
    clock, cpu, done = Stopwatch(), time.process_time(), 0
    while done + len(first) < count:
        messages = consumer.batch_receive()
        for message in messages:
            consumer.acknowledge(message)
        done += len(messages)
    figures: Figures = {"per_s": done / clock(), "cpu_us": (time.process_time() - cpu) / done * 1e6}
    client.close()
    return figures


BENCHMARK: Final = Benchmark(
    name="throughput",
    title="Receive and ack: messages per second",
    about=(
        "One task receives and acks messages that wait on a topic: the native transport, the stock "
        "client under our consumer (over stock), and pulsar-client with asyncio and without. "
        "Lists are received with batch_receive and acked together."
    ),
    seconds=205,
    quick_s=30,
    run=run,
)
