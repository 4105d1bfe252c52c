"""A million messages received and unacked in one process: memory of each, and CPU at rest.

A topic has 40,000 messages of 100 bytes, unbatched or in batches of 1000. Each of its 25 Shared
subscriptions has one consumer, which receives all messages and acks none. That is a million in one
process, within a broker's default limit of 50,000 unacked messages for a consumer.

Memory is measured for two applications. One keeps no message, which leaves the client's own
records. (The stock client keeps none, and so can neither time a nack nor ack a part of a batch.)
The other keeps every message. The stock client is measured with the messages that it has received
after ten seconds, which are fewer than a million.

Memory differs by a few percent between runs, and a run takes minutes, so each is measured once.

    make bench ONLY=held_messages
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import pulsar
import pulsar.asyncio

import pulsar_encore as encore
from pulsar_encore.cli.demo.workload import Figures, resident_mb

from .processes import Runner, broker, fresh_topic
from .rows import Row
from .trial import Benchmark, Trial

MESSAGES: Final = 40_000
CONSUMERS: Final = 25
OVER_S: Final = 3.0
_STOCK_RECEIVES_S: Final = 10.0
_WITHIN_S: Final = 300
_MEMORY: Final = "memory of a message"
_MODULE: Final = "integration.benchmarks.held_messages"  # also when this is `__main__`


async def _hold(
    subscribe: Callable[[str], Awaitable[Any]],
    *,
    messages: int,
    consumers: int,
    keep: bool,
    within_s: float = math.inf,
) -> Figures:
    # Warm up with a first subscription, so that objects that exist once are not measured. It keeps
    # no message: memory that is free at the start would hide growth.
    open_consumers = [await subscribe("warm-up")]
    kept: list[Any] = []
    for _ in range(messages):
        await open_consumers[0].receive()
    before = resident_mb()
    begun, held = time.perf_counter(), 0
    for number in range(consumers):
        consumer = await subscribe(f"held-{number}")
        open_consumers.append(consumer)
        for _ in range(messages):
            message = await consumer.receive()
            if keep:
                kept.append(message)
        held += messages
        if time.perf_counter() - begun > within_s:
            break
    mb = resident_mb() - before
    cpu = time.process_time()
    await asyncio.sleep(OVER_S)
    cpu_ms = (time.process_time() - cpu) * 1000
    return {"held": held, "bytes": round(mb * 1e6 / held, 2), "cpu_ms": cpu_ms}


async def stock(url: str, topic: str, **size: Any) -> Figures:
    """Measure `pulsar.asyncio`."""
    client = pulsar.asyncio.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    figures = await _hold(
        lambda name: client.subscribe(
            topic,
            name,
            consumer_type=pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
        ),
        within_s=_STOCK_RECEIVES_S,
        **size,
    )
    await client.close()
    return figures


async def ours(url: str, topic: str, **size: Any) -> Figures:
    """Measure this package, on the transport that the environment names."""
    async with encore.Client(url) as client:

        async def subscribe(name: str) -> encore.Consumer:
            return await client.subscribe(
                topic,
                name,
                consumer_type=encore.ConsumerType.Shared,
                initial_position=encore.InitialPosition.Earliest,
            )

        return await _hold(subscribe, **size)


def run(trial: Trial) -> Iterator[Row]:
    """Measure both clients, one after the other.

    Raises:
        MeasurementError: if a measurement failed.
    """
    for batch in (1000, 0):
        for keep in (False, True):
            kind = f"batches of {batch}" if batch else "unbatched"
            what = f"{'kept' if keep else 'not kept'} by the application, {kind}"
            yield from _rows(trial, what, batch, keep)


def _rows(trial: Trial, what: str, batch: int, keep: bool) -> Iterator[Row]:
    found: dict[str, Figures] = {}
    with broker(trial.url) as url:
        runner, topic = Runner(url), fresh_topic()
        asyncio.run(
            runner("stock", "fill", within_s=_WITHIN_S, topic=topic, count=MESSAGES, batch=batch)
        )
        for name in ("ours", "stock"):
            trial.step(f"{what}, {name}")
            found[name] = asyncio.run(
                runner(
                    *(_MODULE, name),
                    within_s=_WITHIN_S,
                    transport="native",
                    topic=topic,
                    messages=MESSAGES,
                    consumers=trial.sized(CONSUMERS, 2),
                    keep=keep,
                )
            )
    mine, other = found["ours"], found["stock"]
    for measured, unit, key in (
        (_MEMORY, "bytes", "bytes"),
        (f"CPU over {OVER_S:g} s at rest", "ms", "cpu_ms"),
    ):
        yield Row(
            what=f"{measured}, {what}",
            unit=unit,
            ours=(mine[key] or 0.0,),
            other=(other[key] or 0.0,),
            beside="stock asyncio",
            chart=measured if measured == _MEMORY else "",
            bars=measured == _MEMORY,
            note=f"{mine['held']:,.0f} messages held, and {other['held']:,.0f} by stock",
        )


BENCHMARK: Final = Benchmark(
    name="held_messages",
    title="A million messages held unacked",
    about=(
        "One process with 25 Shared consumers, each of which received 40,000 messages of 100 bytes "
        "and acked none: resident memory of each message, where the application keeps the messages "
        "and where it does not, and CPU at rest; native transport, beside the stock asyncio "
        "client. Where it keeps none, our figure is what we record of each message, for nacks, "
        "partial acks and attempts; the stock client records nothing. Measured once."
    ),
    seconds=105,
    quick_s=None,
    run=run,
)
