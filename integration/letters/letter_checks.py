"""Helpers for the letter tests on a real Pulsar."""

from __future__ import annotations

import asyncio
from typing import Any

import pulsar_encore as encore

QUIET = encore.ConsoleLogger(encore.LoggerLevel.Error)


async def subscribe(
    client: encore.Client, topic: Any, most: int = 3, **options: Any
) -> encore.Consumer:
    """A Shared consumer of subscription "s" with retries, from the earliest message."""
    options.setdefault("dead_letter_policy", encore.DeadLetterPolicy(most))
    options.setdefault("negative_ack_redelivery_delay_ms", 200)
    return await client.subscribe(
        topic,
        "s",
        consumer_type=encore.ConsumerType.Shared,
        initial_position=encore.InitialPosition.Earliest,
        retry_enable=True,
        batch_index_ack_enabled=True,
        **options,
    )


async def read_out(client: encore.Client, topic: str, **options: Any) -> list[encore.Message]:
    """Return all messages on a topic."""
    found = []
    async with await client.create_reader(topic, encore.MessageId.earliest, **options) as reader:
        while await reader.has_message_available():
            found.append(await reader.read_next(timeout_millis=10_000))
    return found


async def await_letters(
    client: encore.Client, topic: str, count: int, **options: Any
) -> list[encore.Message]:
    """Wait for `count` letters for at most 10 s. Return the letters on the topic."""
    for _ in range(100):
        found = await read_out(client, topic, **options)
        if len(found) >= count:
            break
        await asyncio.sleep(0.1)
    return found
