"""Receive and ack with durable state on disk, compared with the same consumer without state.

One task on the native transport with a Shared subscription receives 100-byte messages from a broker
in another process. Messages are in batches of 1000 or unbatched, and are received one at a time or
in lists (`batch_receive`, and one `acknowledge` for each list). `count_attempts="lazy"` keeps new
records in memory for 10 s, so that records of messages acked sooner are never written. "before"
writes each delivery before the application receives it. The variants take turns, each run in a new
process with a new subscription and a new directory. The medians count.

    python -m integration.benchmarks.durable_throughput [--url URL] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from typing import Any, Final

import pulsar_encore as encore
from pulsar_encore.cli.demo.workload import Figures, Stopwatch

from .figures import Row, report
from .processes import Runner, broker, fresh_topic

ROUNDS = 3
#: The bar for "lazy": this share of the rate without state.
SHARE: Final = 0.8
_MODULE: Final = "integration.benchmarks.durable_throughput"  # also when this is `__main__`
WITHOUT: Final = "without"
#: The state mode ("without" for none), and whether messages are received in lists.
Variant = tuple[str, bool]
WAYS: Final[tuple[Variant, ...]] = tuple(
    (state, lists) for lists in (False, True) for state in (WITHOUT, "lazy", "before")
)
SIZE: Final = 100
#: Messages in an entry (0: no batches) -> messages in one round.
KINDS: Final = {1000: 301_000, 0: 101_000}


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


async def _compare(run: Runner, batch: int, messages: int, rounds: int) -> dict[Variant, Figures]:
    topic = fresh_topic()
    await run("stock", "fill", within_s=60, topic=topic, count=messages, batch=batch, size=SIZE)
    found: dict[Variant, list[Figures]] = {variant: [] for variant in WAYS}
    for _ in range(rounds):
        for state, lists in WAYS:
            figures = await run(
                _MODULE,
                "measured",
                within_s=120,
                topic=topic,
                transport="native",
                count=messages - 1,
                subscription=uuid.uuid4().hex,
                state=state,
                lists=lists,
            )
            found[state, lists].append(figures)
    return {
        variant: {
            key: statistics.median(figures_of_round[key] or 0.0 for figures_of_round in each)
            for key in each[0]
        }
        for variant, each in found.items()
    }


def rows_of(batch: int, medians: dict[Variant, Figures]) -> Iterator[Row]:
    """Yield the rows of one kind of topic."""
    entries = f"batches of {batch}" if batch else "unbatched"
    for state, lists in WAYS:
        if state == WITHOUT:
            continue
        what = f"{state}, {'lists' if lists else 'one at a time'}, {entries}"
        ours, plain = medians[state, lists], medians[WITHOUT, lists]
        other = plain["per_s"] or 0.0
        yield Row(
            what=what,
            unit="msg/s",
            figure=ours["per_s"] or 0.0,
            other=other,
            beside=WITHOUT,
            bar=SHARE * other if state == "lazy" else None,
            higher_is_better=True,
        )
        yield Row(
            what="... client CPU",
            unit="us/msg",
            figure=ours["cpu_us"] or 0.0,
            other=plain["cpu_us"] or 0.0,
            beside=WITHOUT,
        )


def run(url: str | None = None, *, rounds: int = ROUNDS) -> list[Row]:
    """Measure both kinds of topic.

    Raises:
        MeasurementError: if a measurement failed.
    """
    rows: list[Row] = []
    for batch, messages in KINDS.items():
        with broker(url) as broker_url:
            medians = asyncio.run(_compare(Runner(broker_url), batch, messages, rounds))
        rows += rows_of(batch, medians)
    return rows


def main() -> int:
    """Print the table. Return 1 if a bar was missed, else 0."""
    parser = argparse.ArgumentParser(description="Receive and acknowledge with a state.")
    parser.add_argument("--url")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    return report(run(options.url, rounds=options.rounds))


if __name__ == "__main__":
    sys.exit(main())
