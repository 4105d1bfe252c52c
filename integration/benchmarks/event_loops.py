"""CPU time on uvloop beside asyncio's own loop, native transport.

Receive and ack from queues, a worker with a handler that awaits once, and concurrent sends, each on
a development broker in another process. The two loops take turns, each run in a new process.

    make bench ONLY=event_loops
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, Final

import uvloop

import pulsar_encore as encore
from pulsar_encore.cli.demo.workload import PAYLOAD, Figures

from .processes import Runner, broker, fresh_topic
from .rows import Row
from .trial import Benchmark, Trial

MESSAGES: Final = 30_000
_PIECE: Final = 1_000
_WITHIN_S: Final = 120
_MODULE: Final = "integration.benchmarks.event_loops"  # also when this is `__main__`
_EARLIEST: Final = encore.InitialPosition.Earliest


async def _receive(url: str, topic: str, subscription: str, count: int) -> float:
    async with encore.Client(url, transport="native") as client:
        consumer = await client.subscribe(
            topic, subscription, encore.ConsumerType.Shared, initial_position=_EARLIEST
        )
        await consumer.acknowledge(await consumer.receive())
        begun = time.process_time()
        for _ in range(count - 1):
            await consumer.acknowledge(await consumer.receive())
        return time.process_time() - begun


async def _work(url: str, topic: str, subscription: str, count: int) -> float:
    done, seen = asyncio.Event(), 0

    async def handle(_payload: bytes) -> None:
        nonlocal seen
        await asyncio.sleep(0)
        seen += 1
        if seen == count:
            done.set()

    async with encore.Client(url, transport="native") as client:
        begun = time.process_time()
        async with encore.Worker(
            client, topic, subscription, handle, concurrency=32, initial_position=_EARLIEST
        ):
            await done.wait()
        return time.process_time() - begun


async def _send(url: str, topic: str, _subscription: str, count: int) -> float:
    async with encore.Client(url, transport="native") as client:
        producer = await client.create_producer(f"{topic}-sent")
        await producer.send(PAYLOAD)
        begun = time.process_time()
        for _ in range(0, count, _PIECE):
            await asyncio.gather(*(producer.send(PAYLOAD) for _ in range(_PIECE)))
        return time.process_time() - begun


_WAYS: Final[dict[str, Callable[[str, str, str, int], Coroutine[Any, Any, float]]]] = {
    "receive and ack": _receive,
    "worker": _work,
    "send, batched": _send,
}
_LOOPS: Final[dict[str, Callable[[], asyncio.AbstractEventLoop]]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.SelectorEventLoop,
}


def measured(
    url: str, topic: str, *, loop: str, way: str, count: int, subscription: str
) -> Figures:
    """Return the CPU time of a message in us."""
    with asyncio.Runner(loop_factory=_LOOPS[loop]) as runner:
        seconds = runner.run(_WAYS[way](url, topic, subscription, count))
    return {"us": seconds / count * 1e6}


def run(trial: Trial) -> Iterator[Row]:
    """Measure each way on topics with unbatched messages and with batches of 1000.

    Raises:
        MeasurementError: if a measurement failed.
    """
    for batch in (0, 1000):
        with broker(trial.url) as url:
            runner, topic = Runner(url), fresh_topic()
            asyncio.run(
                runner(
                    *("stock", "fill"), within_s=_WITHIN_S, topic=topic, count=MESSAGES, batch=batch
                )
            )

            def cpu_us(way: str, loop: str, runner: Runner = runner, topic: str = topic) -> float:
                options = {"loop": loop, "way": way, "topic": topic, "count": MESSAGES}
                return runner.consume(_MODULE, "measured", within_s=_WITHIN_S, **options)["us"] or 0

            for way in _WAYS:
                if way == "send, batched" and not batch:
                    continue
                kind = (
                    ""
                    if way == "send, batched"
                    else f", batches of {batch}"
                    if batch
                    else ", unbatched"
                )
                measure = partial(cpu_us, way)
                pairs = trial.alternate(
                    f"{way}{kind}", partial(measure, "uvloop"), partial(measure, "asyncio")
                )
                yield Row(
                    what=f"{way}{kind}",
                    unit="us/msg",
                    ours=pairs.ours,
                    other=pairs.other,
                    beside="asyncio",
                )


BENCHMARK: Final = Benchmark(
    name="event_loops",
    title="uvloop beside asyncio: CPU",
    about=(
        "CPU time of a process for each message of 100 bytes, native transport, on uvloop beside "
        "the loop of asyncio: receive and ack one by one, a worker with 32 slots whose handler "
        "awaits once, and 1,000 concurrent sends at a time."
    ),
    seconds=70,
    quick_s=None,
    run=run,
)
