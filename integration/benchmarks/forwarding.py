"""Retry letters and dead letters per second, compared with a plain copy: receive, send, ack.

100-byte messages with a key and a property, unbatched, come from a broker in another process. Every
variant receives each message, sends one unbatched copy, and acks the original when the copy is
persisted, with 200 messages at a time. The variants take turns, each on a topic of its own, on one
transport after the other. The medians count. The bar: a letter takes at most 1.2 times as long as a
plain copy on the same transport, or 1.3 times on the stock transport. A letter written by hand is
measured as well, because the seven properties of a letter (more for a dead letter) have a price in
every client.

    python -m integration.benchmarks.forwarding [--url URL] [--rounds 3] [--messages 20000]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import timedelta
from statistics import median
from typing import Any

import pulsar_encore as encore
from pulsar_encore import letters
from pulsar_encore.cli.demo.scenario import SIDES

from .figures import Row, report
from .processes import OURS, broker, fresh_topic

ROUNDS = 3
MESSAGES = 20_000
CONCURRENCY = 200
HOUR = timedelta(hours=1)
SLOWER = {"native": 1.2, "encore": 1.3}  # the bars, by label

#: The options of the producers of letters.
LETTER_PRODUCER: Any = {
    "batching_enabled": False,
    "chunking_enabled": True,
    "max_pending_messages": 500,
    "block_if_queue_full": True,
}

Variant = Callable[[encore.Client, str, int], Awaitable[float]]


def run(url: str | None = None, *, rounds: int = ROUNDS, messages: int = MESSAGES) -> list[Row]:
    """Measure the variants in turn, on each transport."""
    rows: list[Row] = []
    for label, name in OURS.items():
        with broker(url) as broker_url:
            work = _measure(broker_url, SIDES[label][1], rounds, messages)
            rates = asyncio.run(work)
        medians = {variant: median(rate) for variant, rate in rates.items()}
        rows += rows_of(name, medians, SLOWER[label])
    return rows


def rows_of(name: str, medians: Mapping[str, float], factor: float) -> Iterator[Row]:
    """Yield the rows of one transport."""
    for variant, what in (("retry", "retry letters"), ("nack", "dead letters by nack")):
        for beside, bar in (("plain copy", medians["plain"] / factor), ("by hand", None)):
            yield Row(
                what=f"{what} {name}",
                unit="msg/s",
                figure=medians[variant],
                other=medians["plain" if bar else "hand"],
                bar=bar,
                higher_is_better=True,
                beside=beside,
            )


async def _measure(url: str, transport: str, rounds: int, messages: int) -> dict[str, list[float]]:
    variants: dict[str, Variant] = {
        "plain": plain,
        "retry": retry_letters,
        "nack": dead_letters,
        "hand": by_hand,
    }
    rates: dict[str, list[float]] = {variant: [] for variant in variants}
    async with encore.Client(url, transport=transport) as client:
        for measure in variants.values():  # warm up
            await measure(client, await _filled_topic(client, messages // 10), messages // 10)
        for _ in range(rounds):
            for variant, measure in variants.items():
                topic = await _filled_topic(client, messages)
                rates[variant].append(messages / await measure(client, topic, messages))
    return rates


async def _filled_topic(client: encore.Client, messages: int) -> str:
    topic = fresh_topic()
    async with await client.create_producer(
        topic, batching_enabled=False, block_if_queue_full=True
    ) as producer:
        for start in range(0, messages, 1000):
            await asyncio.gather(
                *(
                    producer.send(bytes(100), properties={"colour": "red"}, partition_key=str(each))
                    for each in range(start, min(messages, start + 1000))
                )
            )
    return topic


async def _subscribe(client: encore.Client, topic: str, most: int) -> encore.Consumer:
    return await client.subscribe(
        topic,
        "s",
        consumer_type=encore.ConsumerType.Shared,
        initial_position=encore.InitialPosition.Earliest,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=encore.DeadLetterPolicy(most),
        retry_enable=True,
    )


async def _process_all(
    consumer: encore.Consumer, messages: int, work: Callable[[encore.Message], Awaitable[None]]
) -> float:
    """Receive and `work` on all messages with `CONCURRENCY` workers. Return the seconds."""
    remaining = messages

    async def worker() -> None:
        nonlocal remaining
        while remaining > 0:
            remaining -= 1
            await work(await consumer.receive(timeout=30))

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(CONCURRENCY)))
    return time.perf_counter() - began


async def plain(client: encore.Client, topic: str, messages: int) -> float:
    """Copy messages as an application without letters would."""
    async with (
        await _subscribe(client, topic, 1) as consumer,
        await client.create_producer(f"{topic}-copy", **LETTER_PRODUCER) as producer,
    ):

        async def copy(message: encore.Message) -> None:
            await producer.send(
                message.data(),
                properties=message.properties(),
                partition_key=message.partition_key(),
                event_timestamp=message.event_timestamp() or None,
            )
            await consumer.acknowledge(message)

        return await _process_all(consumer, messages, copy)


async def by_hand(client: encore.Client, topic: str, messages: int) -> float:
    """Write the same letter as an application would by hand."""
    async with (
        await _subscribe(client, topic, 1) as consumer,
        await client.create_producer(f"{topic}-copy", **LETTER_PRODUCER) as producer,
    ):

        async def copy(message: encore.Message) -> None:
            properties = message.properties()
            message_id = message.message_id()
            origin = f"{message_id.ledger_id()}:{message_id.entry_id()}:{message_id.partition()}"
            properties[letters.ORIGIN_MESSAGE_ID] = origin
            properties[letters.ORIGIN_MESSAGE_ID_LEGACY] = origin
            properties[letters.REAL_TOPIC] = message.topic_name()
            properties[letters.REAL_SUBSCRIPTION] = "s"
            properties[letters.RECONSUME_TIMES] = "1"
            properties[letters.DELAY_TIME] = "3600000"
            properties[letters.FIRST_TIME] = str(int(time.time() * 1000))
            await producer.send(
                message.data(),
                properties=properties,
                partition_key=message.partition_key(),
                event_timestamp=message.event_timestamp() or None,
                deliver_after=HOUR,
            )
            await consumer.acknowledge(message)

        return await _process_all(consumer, messages, copy)


async def retry_letters(client: encore.Client, topic: str, messages: int) -> float:
    """Send retry letters with a delay of one hour."""
    async with await _subscribe(client, topic, 1) as consumer:
        return await _process_all(
            consumer, messages, lambda message: consumer.reconsume_later(message, HOUR)
        )


async def dead_letters(client: encore.Client, topic: str, messages: int) -> float:
    """Measure the last delivery of each message: received, nacked, dead-lettered, and acked."""
    async with await _subscribe(client, topic, 1) as consumer:
        await _process_all(
            consumer, messages, lambda message: consumer.negative_acknowledge(message, 1)
        )
        await asyncio.sleep(1.5)
        began = time.perf_counter()
        await _process_all(consumer, messages, consumer.negative_acknowledge)
        while consumer.statistics().unacked:  # noqa: ASYNC110 - there is no event to await
            await asyncio.sleep(0.005)
        return time.perf_counter() - began


def main() -> int:
    """Print the table. Return 1 if a bar was missed, else 0."""
    parser = argparse.ArgumentParser(description="Retry letters and dead letters.")
    parser.add_argument("--url")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    options = parser.parse_args()
    return report(run(options.url, rounds=options.rounds, messages=options.messages))


if __name__ == "__main__":
    sys.exit(main())
