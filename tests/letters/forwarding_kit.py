"""Shared helpers of the letter tests: open consumers, count deliveries, and read topics."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pulsar_encore as encore
from pulsar_encore import letters
from pulsar_encore.devbroker import BrokerThread

QUIET = encore.ConsoleLogger(encore.LoggerLevel.Error)

TOPIC = "persistent://public/default/t"
RETRY = f"{TOPIC}-s-RETRY"
DEAD = f"{TOPIC}-s-DLQ"

Act = Callable[[encore.Consumer, encore.Message], Awaitable[None]]


async def open_consumer(
    client: encore.Client, *topics: str, most: int | None = 2, **options: Any
) -> encore.Consumer:
    """A Shared consumer of subscription "s" with retries, from the earliest message."""
    options.setdefault("consumer_type", encore.ConsumerType.Shared)
    options.setdefault("initial_position", encore.InitialPosition.Earliest)
    options.setdefault("negative_ack_redelivery_delay_ms", 100)
    options.setdefault("retry_enable", True)
    options.setdefault("batch_index_ack_enabled", True)
    if most is not None:
        options.setdefault("dead_letter_policy", encore.DeadLetterPolicy(most))
    topic = list(topics or (TOPIC,))
    return await client.subscribe(topic if len(topic) > 1 else topic[0], "s", **options)


async def nack(consumer: encore.Consumer, message: encore.Message) -> None:
    await consumer.negative_acknowledge(message)


async def reconsume(consumer: encore.Consumer, message: encore.Message) -> None:
    await consumer.reconsume_later(message)


async def handle_all(consumer: encore.Consumer, act: Act, quiet_s: float = 5.0) -> Counter[bytes]:
    """Do `act` with every message until nothing comes; how often each payload was seen."""
    seen: Counter[bytes] = Counter()
    while True:
        try:
            message = await consumer.receive(timeout=quiet_s)
        except encore.ReceiveTimeout:
            return seen
        seen[message.data()] += 1
        await act(consumer, message)


async def read_out(client: encore.Client, topic: str, schema: Any = None) -> list[encore.Message]:
    """Everything on a topic, in order."""
    found = []
    given = {} if schema is None else {"schema": schema}
    async with await client.create_reader(topic, encore.MessageId.earliest, **given) as reader:
        while await reader.has_message_available():
            found.append(await reader.read_next(timeout_millis=5000))
    return found


async def await_letters(
    client: encore.Client, topic: str, count: int, within_s: float = 5.0
) -> list[encore.Message]:
    """At least `count` letters of a topic, or as many as came in time."""
    deadline = asyncio.get_running_loop().time() + within_s
    while True:
        found = await read_out(client, topic)
        if len(found) >= count or asyncio.get_running_loop().time() > deadline:
            return found
        await asyncio.sleep(0.02)


def bodies(messages: list[encore.Message]) -> list[bytes]:
    return [message.data() for message in messages]


def named(messages: list[encore.Message], name: str) -> list[str | None]:
    """One property of each."""
    return [message.properties().get(name) for message in messages]


def pointers(message: encore.Message) -> tuple[str | None, ...]:
    """Return the properties that name the original message."""
    given = message.properties()
    return tuple(
        given.get(name)
        for name in (
            letters.ORIGIN_MESSAGE_ID,
            letters.ORIGIN_MESSAGE_ID_LEGACY,
            letters.REAL_TOPIC,
            letters.REAL_SUBSCRIPTION,
            letters.RECONSUME_TIMES,
            letters.DELAY_TIME,
        )
    )


async def publish(client: encore.Client, topic: str, *payloads: Any, **options: Any) -> None:
    """One message after another, unbatched unless told; None is a tombstone."""
    of_message = {
        name: options.pop(name)
        for name in ("partition_key", "ordering_key", "event_timestamp")
        if name in options
    }
    options.setdefault("batching_enabled", False)
    async with await client.create_producer(topic, **options) as producer:
        sends = [producer.send(payload, **of_message) for payload in payloads]
        await asyncio.gather(*sends)


async def settled(broker: BrokerThread, topic: str) -> None:
    """Until the subscription has nothing left; acks are grouped."""
    for _ in range(200):
        if await asyncio.to_thread(broker.backlog, topic, "s") == 0:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{topic} has a backlog")
