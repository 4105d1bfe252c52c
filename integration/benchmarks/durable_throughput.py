"""Receive and ack with durable state on disk, compared with the same consumer without state.

One task on the native transport with a Shared subscription receives 100-byte messages from a broker
in another process. Messages are in batches of 1000 or unbatched, and are received one at a time or
in lists (`batch_receive`, and one `acknowledge` for each list). `count_attempts="lazy"` keeps new
records in memory for 10 s, so that records of messages acked sooner are never written. "before"
writes each delivery before the application receives it. The variants take turns, each run in a new
process with a new subscription and a new directory.

    make bench ONLY=durable_throughput
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import pulsar_encore as encore
from pulsar_encore.cli.demo.workload import Figures, Stopwatch

from .processes import Runner, broker, fresh_topic
from .rows import Row, row_of
from .trial import Benchmark, Trial

#: The bar for "lazy": this share of the rate without state.
SHARE: Final = 0.8
_MODULE: Final = "integration.benchmarks.durable_throughput"  # also when this is `__main__`
WITHOUT: Final = "without"
#: The state mode ("without" for none), and whether messages are received in lists.
Variant = tuple[str, bool]
SIZE: Final = 100
#: Messages in an entry (0: no batches) -> messages in one round.
KINDS: Final = {1000: 61_000, 0: 21_000}


async def measured(
    url: str, topic: str, *, count: int, subscription: str, state: str, lists: bool
) -> Figures:
    """Receive and ack `count` messages. The first call is not measured."""
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {} if state == WITHOUT else {"state": _state(folder, state)}
        async with (
            encore.Client(url) as client,
            await client.subscribe(
                topic,
                subscription,
                encore.ConsumerType.Shared,
                initial_position=encore.InitialPosition.Earliest,
                batch_receive_policy=encore.BatchReceivePolicy(500, 0, 10),
                **options,
            ) as consumer,
        ):
            before = await _take(consumer, lists)
            clock, cpu, done = Stopwatch(), time.process_time(), 0
            while done + before < count:
                done += await _take(consumer, lists)
            return {"per_s": done / clock(), "cpu_us": (time.process_time() - cpu) / done * 1e6}


async def _take(consumer: encore.Consumer, lists: bool) -> int:
    if lists:
        messages = await consumer.batch_receive()
        await consumer.acknowledge(messages)
        return len(messages)
    await consumer.acknowledge(await consumer.receive())
    return 1


def _state(folder: str, mode: str) -> encore.RocksState:
    return encore.RocksState(folder, count_attempts="lazy" if mode == "lazy" else "before")


def _measure(runner: Runner, topic: str, count: int, variant: Variant) -> Figures:
    state, lists = variant
    return runner.consume(
        _MODULE, "measured", topic=topic, count=count, within_s=120, state=state, lists=lists
    )


def _rows_of(entries: str, lists: bool, found: dict[str, list[Figures]]) -> Iterator[Row]:
    for state in ("lazy", "before"):
        what = f"{state}, {'lists' if lists else 'one at a time'}, {entries}"
        for title, unit, key in (("rate", "msg/s", "per_s"), ("CPU", "us/msg", "cpu_us")):
            rate = key == "per_s"
            yield row_of(
                *(found, state, WITHOUT, key),
                what=f"{title}, {what}",
                unit=unit,
                beside="no state",
                bar=SHARE if rate and state == "lazy" else None,
                higher_is_better=rate,
                chart=f"Receive and ack with durable state: {title}",
            )


def run(trial: Trial) -> Iterator[Row]:
    """Measure both kinds of topic.

    Raises:
        MeasurementError: if a measurement failed.
    """
    for batch, messages in KINDS.items():
        entries = f"batches of {batch}" if batch else "unbatched"
        with broker(trial.url) as url:
            runner, topic = Runner(url), fresh_topic()
            filling = runner(
                "stock", "fill", within_s=60, topic=topic, count=messages, batch=batch, size=SIZE
            )
            asyncio.run(filling)
            for lists in (False, True):
                states = (WITHOUT, "lazy", "before")
                found = trial.in_turns(
                    f"{entries}, {'lists' if lists else 'one at a time'}",
                    {
                        state: partial(_measure, runner, topic, messages - 1, (state, lists))
                        for state in states
                    },
                )
                yield from _rows_of(entries, lists, found)


BENCHMARK: Final = Benchmark(
    name="durable_throughput",
    title="Receive and ack with durable state",
    about=(
        "The native transport with state in RocksDB, beside the same consumer without state. "
        '"lazy" keeps new records in memory for 10 s, so that those of messages acked sooner are '
        'never written. "before" writes each delivery before the application receives it.'
    ),
    seconds=95,
    quick_s=None,
    run=run,
)
