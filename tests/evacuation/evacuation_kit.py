"""Helpers for the tests of evacuations: a host with a state directory, and its successor."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from pulsar_encore import (
    Client,
    Consumer,
    ConsumerType,
    InitialPosition,
    Message,
    ReceiveTimeout,
    RocksState,
)
from pulsar_encore.testing import MemoryTransport

TOPIC = "persistent://public/default/orders"
RETRY = f"{TOPIC}-billing-RETRY"
HOUR = 3600.0


def now_s() -> float:
    return asyncio.get_running_loop().time()


def put_numbers(
    transport: MemoryTransport, count: int, batch: int = 1, topic: str = TOPIC
) -> list[bytes]:
    """Publish `count` numbered messages, `batch` to an entry."""
    numbers = [b"%d" % each for each in range(count)]
    for start in range(0, count, batch):
        transport.put(topic, *numbers[start : start + batch], properties={"colour": "red"})
    return numbers


class OldHost:
    """A host with consumers that keep durable state. The tests shut it down."""

    def __init__(self, client: Client, path: Path) -> None:
        self.client = client
        self.path = path

    async def start(self, topic: str = TOPIC, **options: Any) -> Consumer:
        options.setdefault("consumer_type", ConsumerType.Shared)
        return await self.client.subscribe(
            topic,
            "billing",
            initial_position=InitialPosition.Earliest,
            state=RocksState(self.path),
            **options,
        )

    async def leave_waiting(
        self, count: int, which: set[int], delay: float = HOUR, topic: str = TOPIC, **options: Any
    ) -> float:
        """Receive `count` messages, nack some, ack the others, stop, and return the time of the
        stop.
        """
        consumer = await self.start(topic, **options)
        for _ in range(count):
            message = await consumer.receive(timeout=100)
            if int(message.data()) in which:
                await consumer.negative_acknowledge(message, delay=delay)
            else:
                await consumer.acknowledge(message)
        begun = now_s()
        await consumer.close()
        return begun


async def take_over(client: Client, topic: str = TOPIC, **options: Any) -> Consumer:
    """Subscribe on another host, without state, to the topic and its retry letter topic."""
    options.setdefault("consumer_type", ConsumerType.Shared)
    return await client.subscribe(
        topic, "billing", initial_position=InitialPosition.Earliest, retry_enable=True, **options
    )


async def receive_all(consumer: Consumer, quiet_s: float = 1.0) -> list[Message]:
    """Receive without acks until no message has arrived for `quiet_s`."""
    got = []
    while True:
        try:
            got.append(await consumer.receive(timeout=quiet_s))
        except ReceiveTimeout:
            return got


def numbers_of(messages: list[Message]) -> list[int]:
    return sorted(int(each.data()) for each in messages)
