"""Throughput of a worker beside plain receive loops, and memory of idle workers.

The handler awaits once (`asyncio.sleep(0)`). The worker has 32 slots, a timeout, retries and a
breaker. The sides take turns, and the figures are medians.

    python -m integration.benchmarks.workers [--url pulsar://localhost:6650] [--messages 50000]
    python -m integration.benchmarks.workers --idle 1000
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Final

import psutil

import pulsar_encore as encore

from .processes import broker, fresh_topic

PAYLOAD: Final = b"x" * 100
ROUNDS: Final = 3
EARLIEST: Final = encore.InitialPosition.Earliest


async def fill(client: encore.Client, topic: str, messages: int, *, batched: bool) -> None:
    async with client.create_producer(
        topic,
        batching_enabled=batched,
        batching_max_messages=1000,
        max_pending_messages=5000,
        block_if_queue_full=True,
    ) as producer:
        await asyncio.gather(*(producer.send(PAYLOAD) for _ in range(messages)))


async def loop_rate(client: encore.Client, topic: str, messages: int, *, awaits: bool) -> float:
    """Return messages per second of one task that receives and acks one by one."""
    async with client.subscribe(
        topic, uuid.uuid4().hex, encore.ConsumerType.Shared, initial_position=EARLIEST
    ) as consumer:
        begun = time.perf_counter()
        for _ in range(messages):
            message = await consumer.receive()
            if awaits:
                await asyncio.sleep(0)
            await consumer.acknowledge(message)
        return messages / (time.perf_counter() - begun)


async def task_rate(client: encore.Client, topic: str, messages: int) -> float:
    """Return messages per second of a program that makes a task for each message, 32 at a time.

    It has nothing else: no timeout, retry, count or drain. So it is the least that a worker in
    Python costs, if each call is a task.
    """
    free = asyncio.Semaphore(32)

    async def handle(message: encore.Message[Any]) -> None:
        await asyncio.sleep(0)
        await consumer.acknowledge(message)
        free.release()

    async with client.subscribe(
        topic, uuid.uuid4().hex, encore.ConsumerType.Shared, initial_position=EARLIEST
    ) as consumer:
        begun = time.perf_counter()
        running: set[asyncio.Task[None]] = set()
        for _ in range(messages):
            await free.acquire()
            task = asyncio.create_task(handle(await consumer.receive()))
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.gather(*running)
        return messages / (time.perf_counter() - begun)


async def worker_rate(client: encore.Client, topic: str, messages: int, **options: Any) -> float:
    """Return messages per second of a worker."""
    left, done = messages, asyncio.Event()

    async def handler(payload: bytes) -> None:
        nonlocal left
        await asyncio.sleep(0)
        left -= 1
        if left == 0:
            done.set()

    worker = encore.Worker(
        client,
        topic,
        uuid.uuid4().hex,
        handler,
        concurrency=32,
        timeout=60,
        breaker=encore.Breaker(on=ConnectionError),
        initial_position=EARLIEST,
        **options,
    )
    async with worker:
        begun = time.perf_counter()
        await done.wait()
        return messages / (time.perf_counter() - begun)


async def throughput(url: str, messages: int) -> None:
    async with encore.Client(url) as client:
        for batched in (False, True):
            topic = fresh_topic()
            async with client.subscribe(topic, "keep", encore.ConsumerType.Shared):
                await fill(client, topic, messages, batched=batched)
            sides: dict[str, Callable[[], Awaitable[float]]] = {
                "plain loop": lambda topic=topic: loop_rate(client, topic, messages, awaits=False),
                "plain loop with the handler's await": lambda topic=topic: loop_rate(
                    client, topic, messages, awaits=True
                ),
                "a task for each message, by hand": lambda topic=topic: task_rate(
                    client, topic, messages
                ),
                "worker": lambda topic=topic: worker_rate(client, topic, messages),
                'worker, order="key"': lambda topic=topic: worker_rate(
                    client, topic, messages, order="key"
                ),
            }
            rates: dict[str, list[float]] = {name: [] for name in sides}
            for _ in range(ROUNDS):
                for name, side in sides.items():
                    rates[name].append(await side())
            print("batches of 1000" if batched else "unbatched")
            plain = statistics.median(rates["plain loop"])
            for name, found in rates.items():
                median = statistics.median(found)
                print(f"  {name:40} {median:10,.0f}/s  {median / plain:5.2f} of the plain loop")


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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--url")
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--idle", type=int, default=0)
    given = parser.parse_args()
    with broker(given.url) as url:
        if given.idle:
            asyncio.run(idle(url, given.idle))
        else:
            asyncio.run(throughput(url, given.messages))


if __name__ == "__main__":
    main()
