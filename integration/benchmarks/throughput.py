"""Receive and ack in one task: both transports, stock asyncio and the stock synchronous client.

Messages come from a broker in another process: 100 bytes in producer batches of 1000 and of 10, and
unbatched 100 bytes and 10 kB. They are received one at a time, and in lists: `batch_receive`, and
one `acknowledge` for each list. The stock synchronous client cannot ack a list, and acks each
message. The clients take turns, each run in a new process and on a new subscription, and the
medians count.

    python -m integration.benchmarks.throughput [--url URL] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pulsar

import pulsar_encore as encore
from pulsar_encore.cli.demo.throughput import WAYS, compare
from pulsar_encore.cli.demo.workload import Figures, Stopwatch

from .figures import Row, report
from .processes import OURS, Runner, broker, fresh_topic

ROUNDS = 3
_MODULE: Final = "integration.benchmarks.throughput"  # also when this is `__main__`
#: `batch_receive` returns this many messages (500), or those that are there after 10 ms.
LISTS: Final = (500, 0, 10)
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
        rates: The least ratio of rates, by transport and the client it is compared with.
        cpu: Largest CPU time of the native transport, as a share of the stock synchronous client's.
    """

    batch: int
    size: int
    messages: int
    rates: Mapping[tuple[str, str], float]
    cpu: float

    def __str__(self) -> str:
        size = f"{self.size:,} B"
        return f"{size}, batches of {self.batch}" if self.batch else f"{size}, unbatched"


KINDS = (
    Kind(
        batch=1000,
        size=100,
        messages=301_000,
        rates={
            ("native", "stock asyncio"): 15.0,
            ("native", "stock sync"): 2.0,
            ("encore", "stock asyncio"): 6.0,
            ("encore", "stock sync"): 1.0,
        },
        cpu=0.35,
    ),
    Kind(batch=10, size=100, messages=101_000, rates={}, cpu=0.4),
    Kind(batch=0, size=100, messages=101_000, rates={}, cpu=0.6),
    Kind(batch=0, size=10_000, messages=11_000, rates={}, cpu=0.8),
)
#: Label -> its name in the table, and the clients it is compared with.
COMPARED: Final = {
    **{label: (name, ("stock asyncio", "stock sync")) for label, name in OURS.items()},
    "native, lists": ("native, lists", ("stock asyncio", "stock sync", "stock sync, lists")),
}


def run(url: str | None = None, *, rounds: int = ROUNDS) -> list[Row]:
    """Measure every kind of topic.

    Raises:
        MeasurementError: if a measurement failed.
    """
    return [row for kind in KINDS for row in rows_of(kind, _medians(url, rounds, kind))]


def _medians(url: str | None, rounds: int, kind: Kind) -> dict[str, Figures]:
    sizes = {"messages": kind.messages, "batch": kind.batch, "size": kind.size}
    with broker(url) as broker_url:
        work = compare(
            Runner(broker_url), topic=fresh_topic(), rounds=rounds, ways=ALL_WAYS, **sizes
        )
        outcomes = asyncio.run(work)
    medians: dict[str, Figures] = {}
    for label, outcome in outcomes.items():
        if isinstance(outcome, Exception):
            raise outcome
        medians[label] = outcome
    return medians


def rows_of(kind: Kind, medians: Mapping[str, Figures]) -> Iterator[Row]:
    """Yield the rows of one kind of topic."""
    for label, (name, compared) in COMPARED.items():
        rate, cpu_us = (medians[label][key] or 0.0 for key in ("per_s", "cpu_us"))
        for beside in compared:
            other = medians[beside]["per_s"] or 0.0
            factor = kind.rates.get((label.partition(",")[0], beside))
            yield Row(
                what=f"receive + ack {name}, {kind}",
                unit="msg/s",
                figure=rate,
                other=other,
                bar=None if factor is None else factor * other,
                higher_is_better=True,
                beside=beside,
            )
        for beside in compared:
            other = medians[beside]["cpu_us"] or 0.0
            promised = label != "encore" and beside == "stock sync"
            yield Row(
                what=f"client CPU {name}, {kind}",
                unit="us/msg",
                figure=cpu_us,
                other=other,
                bar=kind.cpu * other if promised else None,
                beside=beside,
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


def main() -> int:
    """Print the table. Return 1 if a bar was missed, else 0."""
    parser = argparse.ArgumentParser(description="Receive and acknowledge.")
    parser.add_argument("--url")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    return report(run(options.url, rounds=options.rounds))


if __name__ == "__main__":
    sys.exit(main())
