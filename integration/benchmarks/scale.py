"""Memory of one more partition, producer, lease and key: the constants of docs/scale.md.

Each measurement is a process of its own on a development broker in another process. Memory does not
depend on the load of the machine and differs by a few percent between runs, so each is measured
once.

    make bench ONLY=scale
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import psutil

import pulsar_encore as encore
from pulsar_encore.cli.demo.workload import PAYLOAD, Figures, resident_mb

from .processes import Runner, broker, fresh_topic
from .rows import Row
from .trial import Benchmark, Trial

PARTITIONS: Final = 1_000
PRODUCERS: Final = 1_000
MESSAGES: Final = 100_000
_AT_ONCE: Final = 50
_PIECE: Final = 1_000
_WITHIN_S: Final = 240
_MODULE: Final = "integration.benchmarks.scale"  # also when this is `__main__`
_NO_WINDOW: Final = ("--unacked-per-consumer", "0", "--unacked-per-subscription", "0")
_EARLIEST: Final = encore.InitialPosition.Earliest


async def partitions(url: str, topic: str, *, count: int) -> Figures:
    """Measure one idle consumer of a topic whose `count` partitions the broker creates."""
    async with encore.Client(url) as client:
        # The second consumer is measured, without the objects that exist once.
        await client.subscribe(f"{topic}-first", "idle", encore.ConsumerType.Shared)
        before_mb = resident_mb()
        await client.subscribe(topic, "idle", encore.ConsumerType.Shared)
        await asyncio.sleep(1)
        more_mb = resident_mb() - before_mb
        process = psutil.Process()
        return {
            "bytes": more_mb * 1e6 / count,
            "connections": len(process.net_connections()),
            "tasks": len(asyncio.all_tasks()),
            "threads": process.num_threads(),
        }


async def producers(url: str, topic: str, *, count: int) -> Figures:
    """Measure `count` producers on topics of their own, each with one stored message."""

    async def produce(number: int) -> encore.Producer:
        producer = await client.create_producer(f"{topic}-{number}")
        await producer.send(PAYLOAD)
        return producer

    async with encore.Client(url) as client:
        made = [await produce(0)]
        before_mb = resident_mb()
        for start in range(1, count + 1, _AT_ONCE):
            numbers = range(start, min(start + _AT_ONCE, count + 1))
            made += await asyncio.gather(*map(produce, numbers))
        return {"bytes": (resident_mb() - before_mb) * 1e6 / count}


async def fill(url: str, topic: str, *, count: int) -> Figures:
    """Publish `count` messages of 100 bytes, each with a key of its own and in its own entry."""
    async with encore.Client(url) as client:
        producer = await client.create_producer(topic, batching_enabled=False)
        for start in range(0, count, _PIECE):
            numbers = range(start, min(start + _PIECE, count))
            await asyncio.gather(
                *(producer.send(PAYLOAD, partition_key=f"customer-{each}") for each in numbers)
            )
    return {"messages": count}


async def leases(url: str, topic: str, *, count: int, ordered: bool) -> Figures:
    """Measure `count` leases that the application keeps."""
    async with encore.Client(url) as client:
        consumer = await client.subscribe(
            topic,
            f"leases-{ordered}",
            encore.ConsumerType.KeyShared if ordered else encore.ConsumerType.Shared,
            initial_position=_EARLIEST,
            max_leases=2 * count,
            max_unacked_messages=4 * count,
            ordered_leases=ordered,
        )
        kept = await consumer.pop(1, lease=10_000)
        before_mb = resident_mb()
        while len(kept) < count:
            kept += await consumer.pop(_PIECE, lease=10_000)
        return {"bytes": (resident_mb() - before_mb) * 1e6 / count}


async def worker(url: str, topic: str, *, count: int) -> Figures:
    """Measure a worker by key, when it has acked a message of each of `count` keys."""
    done, seen = asyncio.Event(), 0
    before_mb = most_mb = 0.0

    async def handle(_payload: bytes) -> None:
        nonlocal seen, before_mb, most_mb
        seen += 1
        if seen == count // 10:
            before_mb = resident_mb()
        elif seen % (count // 10) == 0:
            most_mb = max(most_mb, resident_mb())
        if seen == count:
            done.set()

    async with (
        encore.Client(url) as client,
        encore.Worker(client, topic, "keys", handle, order="key", initial_position=_EARLIEST),
    ):
        await done.wait()
    return {"bytes": (most_mb - before_mb) * 1e6 / (count - count // 10)}


def run(trial: Trial) -> Iterator[Row]:
    """Measure everything once.

    Raises:
        MeasurementError: if a measurement failed.
    """

    def measured(runner: Runner, name: str, topic: str, **size: Any) -> Figures:
        trial.step(name)
        size["transport"] = "native"
        return asyncio.run(runner(_MODULE, name, within_s=_WITHIN_S, topic=topic, **size))

    with broker(trial.url, "--partitions", str(PARTITIONS)) as url:
        found = measured(Runner(url), "partitions", fresh_topic(), count=PARTITIONS)
    yield _row("an idle partition of a consumer", "bytes", found["bytes"])
    for what in ("connections", "tasks", "threads"):
        yield _row(
            f"{what} of a process with two consumers of {PARTITIONS:,} partitions each",
            what,
            found[what],
        )
    with broker(trial.url, *_NO_WINDOW) as url:
        runner, topic = Runner(url), fresh_topic()
        found = measured(runner, "producers", fresh_topic(), count=PRODUCERS)
        yield _row("an idle producer", "bytes", found["bytes"])
        count = trial.sized(MESSAGES, 10_000)
        measured(runner, "fill", topic, count=count)
        for ordered in (False, True):
            kind = "a lease of a key of its own, in order" if ordered else "a lease"
            found = measured(runner, "leases", topic, count=count, ordered=ordered)
            yield _row(f"{kind}, with its message", "bytes", found["bytes"])
        found = measured(runner, "worker", topic, count=count)
        yield _row("a key that a worker by key has seen", "bytes", found["bytes"])


def _row(what: str, unit: str, figure: float | None) -> Row:
    return Row(what=what, unit=unit, ours=(round(figure or 0.0, 1),))


BENCHMARK: Final = Benchmark(
    name="scale",
    title="One more of each",
    about=(
        "Resident memory of one process, native transport: a consumer of a topic with 1,000 "
        "partitions, 1,000 producers, 100,000 leases of messages of 100 bytes that the application "
        "keeps, unbatched and each with a key of its own, and a worker by key that has handled "
        "100,000 keys. Figures are for one of them. Measured once."
    ),
    seconds=150,
    quick_s=None,
    run=run,
)
