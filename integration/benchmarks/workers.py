"""CPU time and throughput of a worker beside plain receive loops, and memory of idle workers.

Messages of 100 bytes come from a broker in another process. The handler awaits once
(`asyncio.sleep(0)`). The worker has 32 slots, a timeout and a breaker. The loops have none of it:
one receives and acks one message after the other, with the same await in between. The other starts
a task for each message, 32 at a time, which is the least that a worker costs if each call is a
task. Every run has a process and a subscription of its own.

    make bench ONLY=workers
    python -m integration.benchmarks.workers --idle 1000 [--url pulsar://localhost:6650]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import psutil

import pulsar_encore as encore
from pulsar_encore.cli.demo.workload import Figures, Stopwatch

from .processes import Runner, broker, fresh_topic
from .rows import Row, row_of
from .trial import Benchmark, Trial

_MODULE: Final = "integration.benchmarks.workers"  # also when this is `__main__`
_WITHIN_S: Final = 120
_SLOTS: Final = 32
_SHARED: Final[dict[str, Any]] = {"initial_position": encore.InitialPosition.Earliest}
LOOP, TASKS, WORKER, BY_KEY = "plain loop", "task for each", "worker", "worker by key"
#: Subject -> its function below, and parameters of that.
SUBJECTS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    LOOP: ("plain_loop", {}),
    TASKS: ("task_for_each", {}),
    WORKER: ("worker", {}),
    BY_KEY: ("worker", {"by_key": True}),
}
#: Messages of an entry, 0 for unbatched messages.
SHAPES: Final = {"unbatched": 0, "batches of 1000": 1000}
MESSAGES: Final = 12_000
QUICK_MESSAGES: Final = 5_000


async def plain_loop(url: str, topic: str, *, count: int) -> Figures:
    """Receive and ack one message after the other, in one task."""
    async with (
        encore.Client(url) as client,
        client.subscribe(topic, _name(), encore.ConsumerType.Shared, **_SHARED) as consumer,
    ):
        await consumer.acknowledge(await consumer.receive())
        clock, cpu = Stopwatch(), time.process_time()
        for _ in range(count):
            message = await consumer.receive()
            await asyncio.sleep(0)
            await consumer.acknowledge(message)
        return _figures(count, clock, cpu)


async def task_for_each(url: str, topic: str, *, count: int) -> Figures:
    """Start a task for each message, up to 32 at a time."""
    free = asyncio.Semaphore(_SLOTS)

    async def handle(message: encore.Message[Any]) -> None:
        await asyncio.sleep(0)
        await consumer.acknowledge(message)
        free.release()

    async with (
        encore.Client(url) as client,
        client.subscribe(topic, _name(), encore.ConsumerType.Shared, **_SHARED) as consumer,
    ):
        await consumer.acknowledge(await consumer.receive())
        clock, cpu = Stopwatch(), time.process_time()
        running: set[asyncio.Task[None]] = set()
        for _ in range(count):
            await free.acquire()
            task = asyncio.create_task(handle(await consumer.receive()))
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.gather(*running)
        return _figures(count, clock, cpu)


async def worker(url: str, topic: str, *, count: int, by_key: bool = False) -> Figures:
    """Handle messages with a worker."""
    first, done, handled = asyncio.Event(), asyncio.Event(), 0

    async def handler(payload: bytes) -> None:
        nonlocal handled
        await asyncio.sleep(0)
        handled += 1
        if handled == 1:
            first.set()
        if handled == count + 1:
            done.set()

    async with encore.Client(url) as client:
        made = encore.Worker(
            client,
            topic,
            _name(),
            handler,
            concurrency=_SLOTS,
            timeout=60,
            breaker=encore.Breaker(on=ConnectionError),
            **({"order": "key"} if by_key else {}),
            **_SHARED,
        )
        async with made:
            await first.wait()
            clock, cpu = Stopwatch(), time.process_time()
            await done.wait()
            return _figures(count, clock, cpu)


def _name() -> str:
    return uuid.uuid4().hex


def _figures(count: int, clock: Stopwatch, cpu: float) -> Figures:
    seconds, cpu_s = clock(), time.process_time() - cpu
    return {"per_s": count / seconds, "cpu_us": cpu_s / count * 1e6}


def run(trial: Trial) -> Iterator[Row]:
    """Measure each kind of topic. A quick run measures the worker and the plain loop, unbatched.

    Raises:
        MeasurementError: if a measurement failed.
    """
    count = trial.sized(MESSAGES, QUICK_MESSAGES)
    compared = (
        ((WORKER, LOOP),) if trial.quick else ((WORKER, LOOP), (WORKER, TASKS), (BY_KEY, LOOP))
    )
    names = dict.fromkeys(name for pair in compared for name in pair)
    for shape, batch in list(SHAPES.items())[: 1 if trial.quick else None]:
        with broker(trial.url) as url:
            runner, topic = Runner(url), fresh_topic()
            filling = runner(
                "stock", "fill", within_s=_WITHIN_S, topic=topic, count=count + 1, batch=batch
            )
            asyncio.run(filling)
            subjects = {name: partial(_measure, runner, topic, count, name) for name in names}
            found = trial.in_turns(shape, subjects)
        for ours, other in compared:
            for title, unit, key in (("CPU", "us/msg", "cpu_us"), ("rate", "msg/s", "per_s")):
                yield row_of(
                    *(found, ours, other, key),
                    what=f"{title}, {ours}, {shape}",
                    unit=unit,
                    higher_is_better=key == "per_s",
                    chart=f"Worker: {title}",
                )


def _measure(runner: Runner, topic: str, count: int, subject: str) -> Figures:
    name, parameters = SUBJECTS[subject]
    work = runner(
        _MODULE,
        name,
        within_s=_WITHIN_S,
        topic=topic,
        transport="native",
        count=count,
        **parameters,
    )
    return asyncio.run(work)


BENCHMARK: Final = Benchmark(
    name="workers",
    title="Worker beside plain loops",
    about=(
        "Messages of 100 bytes, native transport, and a handler that awaits once. The worker has "
        "32 slots, a timeout and a breaker. The plain loop handles one message after the other "
        "and has none of these. The other loop starts a task for each message, 32 at a time."
    ),
    seconds=90,
    quick_s=16,
    run=run,
)


async def idle(url: str, workers: int) -> None:
    """Print the memory of each of many idle workers on one client, each with a topic of its own."""
    process = psutil.Process()
    async with encore.Client(url) as client:

        async def nothing(payload: bytes) -> None: ...

        async def started(number: int) -> encore.Worker[Any]:
            worker = encore.Worker(client, f"idle-{number}", "s", nothing)
            await worker.__aenter__()
            return worker

        running = [await started(0)]
        gc.collect()
        before = process.memory_info().rss
        for first in range(1, workers, 50):
            last = min(first + 50, workers)
            running += await asyncio.gather(*map(started, range(first, last)))
        gc.collect()
        taken = (process.memory_info().rss - before) / (workers - 1)
        print(f"{workers} idle workers: {taken / 1024:.1f} KiB each")
        for worker in running:
            worker.stop()
        await asyncio.gather(*(worker.__aexit__(None, None, None) for worker in running))


def main() -> None:
    """Measure idle workers, and print."""
    parser = argparse.ArgumentParser(description="Memory of idle workers.")
    parser.add_argument("--url")
    parser.add_argument("--idle", type=int, default=1000)
    given = parser.parse_args()
    with broker(given.url) as url:
        asyncio.run(idle(url, given.idle))


if __name__ == "__main__":
    main()
