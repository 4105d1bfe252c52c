"""Bytes of memory for each message, with a million messages received and unacked.

A topic has 40,000 messages of 100 bytes, unbatched or in batches of 1000. Each of its 25 Shared
subscriptions has one consumer, which receives all messages and acks none. That is a million in one
process, within a broker's default limit of 50,000 unacked messages for a consumer. Memory is
measured twice. First the application keeps no message, which leaves the client's own records. (The
stock client keeps none, and so can neither time a nack nor ack a part of a batch.) Then the
application keeps every message.

    python -m integration.benchmarks.held_messages [--url URL] [--consumers 25]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pulsar
import pulsar.asyncio

import pulsar_encore as encore
from pulsar_encore.cli.demo.scenario import SIDES
from pulsar_encore.cli.demo.workload import Figures, resident_mb

from .figures import Row, report
from .processes import OURS, Runner, broker, fresh_topic

MESSAGES: Final = 40_000
CONSUMERS: Final = 25
_MODULE: Final = "integration.benchmarks.held_messages"


async def _hold(
    subscribe: Callable[[str], Awaitable[Any]], *, messages: int, consumers: int, keep: bool
) -> Figures:
    # Warm up with a first subscription, so that objects that exist once are not measured.
    open_consumers = [await subscribe("warm-up")]
    kept: list[Any] = [await open_consumers[0].receive() for _ in range(messages)]
    kept.clear()
    before = resident_mb()
    for number in range(consumers):
        consumer = await subscribe(f"held-{number}")
        open_consumers.append(consumer)
        for _ in range(messages):
            message = await consumer.receive()
            if keep:
                kept.append(message)
    return {"bytes": round((resident_mb() - before) * 1e6 / (messages * consumers), 1)}


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


async def _measure(url: str, consumers: int, batch: int, keep: bool) -> dict[str, float]:
    runner = Runner(url)
    topic = fresh_topic()
    await runner("stock", "fill", within_s=60, topic=topic, count=MESSAGES, batch=batch)
    found: dict[str, float] = {}
    for label, (side, transport) in SIDES.items():
        name = "stock" if side == "stock" else "ours"
        figures = await runner(
            *(_MODULE, name),
            within_s=300,
            transport=transport,
            topic=topic,
            messages=MESSAGES,
            consumers=consumers,
            keep=keep,
        )
        found[label] = figures["bytes"] or 0.0
    return found


def run(url: str | None = None, *, consumers: int = CONSUMERS) -> list[Row]:
    """Measure all clients, one after the other."""
    rows = []
    for batch in (0, 1000):
        for keep in (False, True):
            with broker(url) as broker_url:
                found = asyncio.run(_measure(broker_url, consumers, batch, keep))
            kind = f"batches of {batch}" if batch else "unbatched"
            application = "kept" if keep else "not kept"
            rows += [
                Row(
                    what=f"unacked and {application}, {kind}, {name}",
                    unit="bytes",
                    figure=found[label],
                    other=found["stock"],
                    beside="stock asyncio",
                )
                for label, name in OURS.items()
            ]
    return rows


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Memory of messages held unacked.")
    parser.add_argument("--url")
    parser.add_argument("--consumers", type=int, default=CONSUMERS)
    options = parser.parse_args()
    return report(run(options.url, consumers=options.consumers))


if __name__ == "__main__":
    sys.exit(main())
