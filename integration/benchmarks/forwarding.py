"""CPU time of a retry letter and of a dead letter, beside loops written by hand.

100-byte messages with a key and a property, unbatched, come from a broker in another process. Every
variant receives each message, sends one unbatched copy, and acks the original when the copy is
persisted, with 200 messages at a time. The variants take turns, each on a topic of its own. The
bar is beside a loop that writes the same properties: the seven properties of a letter (more for a
dead letter) have a price in every client. The plain copy has only the properties of the message.

    make bench ONLY=forwarding
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final

import pulsar_encore as encore
from pulsar_encore import letters
from pulsar_encore.cli.demo.scenario import SIDES

from .processes import OURS, broker, fresh_topic
from .rows import Row
from .trial import Benchmark, Trial

MESSAGES: Final = 10_000
QUICK_MESSAGES: Final = 1_500
WARM_UP: Final = 500
CONCURRENCY: Final = 200
HOUR: Final = timedelta(hours=1)

#: The options of the producers of letters.
LETTER_PRODUCER: Any = {
    "batching_enabled": False,
    "chunking_enabled": True,
    "max_pending_messages": 500,
    "block_if_queue_full": True,
}

Variant = Callable[[encore.Client, str, int], Awaitable[float]]


@dataclass(frozen=True, kw_only=True)
class Letters:
    """One kind of letter.

    Attributes:
        bar: Least rate beside a letter by hand.
    """

    name: str
    variant: Variant
    bar: float


def run(trial: Trial) -> Iterator[Row]:
    """Measure the variants in turn, on each transport."""
    count = trial.sized(MESSAGES, QUICK_MESSAGES)
    variants = {"plain": plain, "hand": by_hand, **{each.name: each.variant for each in KINDS}}
    for label, name in OURS.items():
        with _quiet(), broker(trial.url) as url:
            measure = partial(_per_cpu_second, url, SIDES[label][1])
            for variant in variants.values():
                measure(variant, WARM_UP)
            rates = trial.in_turns(
                f"letters, {name}",
                {key: partial(measure, variant, count) for key, variant in variants.items()},
            )
        for kind in KINDS:
            for beside, key in (("letter by hand", "hand"), ("plain copy", "plain")):
                yield Row(
                    what=f"{kind.name}, {name}",
                    unit="msg per s of CPU",
                    ours=tuple(rates[kind.name]),
                    other=tuple(rates[key]),
                    bar=kind.bar if key == "hand" else None,
                    higher_is_better=True,
                    beside=beside,
                )


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the warnings about dead letters."""
    logger = logging.getLogger("pulsar_encore")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _per_cpu_second(url: str, transport: str, variant: Variant, messages: int) -> float:
    """Return how many messages a variant handles in one second of this process's CPU time."""

    async def measure() -> float:
        async with encore.Client(url, transport=transport) as client:
            topic = await _filled_topic(client, messages)
            return messages / await variant(client, topic, messages)

    return asyncio.run(measure())


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
    """Receive and `work` on all messages with `CONCURRENCY` workers. Return the CPU time in s."""
    remaining = messages

    async def worker() -> None:
        nonlocal remaining
        while remaining > 0:
            remaining -= 1
            await work(await consumer.receive(timeout=30))

    began = time.process_time()
    await asyncio.gather(*(worker() for _ in range(CONCURRENCY)))
    return time.process_time() - began


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
        began = time.process_time()
        await _process_all(consumer, messages, consumer.negative_acknowledge)
        while consumer.statistics().unacked:  # noqa: ASYNC110 - there is no event to await
            await asyncio.sleep(0.005)
        return time.process_time() - began


KINDS: Final = (
    Letters(name="retry letters", variant=retry_letters, bar=0.9),
    Letters(name="dead letters", variant=dead_letters, bar=0.8),
)

BENCHMARK: Final = Benchmark(
    name="forwarding",
    title="Letters",
    about=(
        "Retry letters (`reconsume_later`) and dead letters (the last nack of a message) for each "
        "second of CPU time, beside a loop that writes the properties of a retry letter by hand, "
        "and beside a loop that receives, sends a plain copy and acks."
    ),
    seconds=120,
    quick_s=None,
    run=run,
)
