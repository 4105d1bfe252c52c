"""Steps that several tests share: publish, subscribe, receive, process everything."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from random import Random
from typing import Any

import pulsar_encore as encore

WAIT_S = 5.0
SUBSCRIPTION = "s"
MARKER = b"nothing before this"


def bodies(count: int, start: int = 0) -> list[bytes]:
    """Return payloads that sort in publishing order."""
    return [b"%05d" % number for number in range(start, start + count)]


async def publish(
    client: encore.Client,
    topic: str,
    payloads: Sequence[Any],
    *,
    batch: int = 0,
    by_key: bool = False,
    keys: Sequence[str] | None = None,
    schema: Any = None,
    **send: Any,
) -> list[encore.MessageId]:
    """Publish in order and return the ids.

    Args:
        batch: Messages in an entry; 0 publishes unbatched messages.
        by_key: Batch messages by key.
    """
    options: dict[str, Any] = {"batching_enabled": batch > 0, "schema": schema}
    options["max_pending_messages"] = max(1000, len(payloads))
    if batch:
        options |= {"batching_max_messages": batch, "batching_max_publish_delay_ms": 60_000}
    if by_key:
        options["batching_type"] = encore.BatchingType.KeyBased
    async with await client.create_producer(topic, **options) as producer:
        sends = [
            asyncio.ensure_future(
                producer.send(payload, partition_key=keys[at] if keys else None, **send)
            )
            for at, payload in enumerate(payloads)
        ]
        await asyncio.sleep(0)  # every `send` has passed its message on
        await producer.flush()
        return list(await asyncio.gather(*sends))


async def subscribe(
    client: encore.Client,
    topic: Any,
    kind: encore.ConsumerType = encore.ConsumerType.Shared,
    **options: Any,
) -> encore.Consumer:
    """Create a consumer at the beginning of the topic."""
    options.setdefault("initial_position", encore.InitialPosition.Earliest)
    return await client.subscribe(topic, SUBSCRIPTION, consumer_type=kind, **options)


async def take(
    consumer: encore.Consumer, count: int, *, timeout: float = WAIT_S
) -> list[encore.Message]:
    """Receive `count` messages, or raise an AssertionError with those that arrived."""
    received: list[encore.Message] = []
    end = time.monotonic() + timeout
    while len(received) < count:
        try:
            received.append(await consumer.receive(timeout=max(0.0, end - time.monotonic())))
        except encore.ReceiveTimeout:
            raise AssertionError(
                f"{len(received)} of {count} messages arrived: {data(received)}"
            ) from None
    return received


def data(messages: Iterable[encore.Message]) -> list[bytes]:
    """Return the payloads."""
    return [message.data() for message in messages]


async def ack_all(consumer: encore.Consumer, messages: Iterable[encore.Message]) -> None:
    await consumer.acknowledge(list(messages))


async def before_marker(
    client: encore.Client, topic: str, consumer: encore.Consumer
) -> list[encore.Message]:
    """Publish a marker, and return the messages that are delivered before it.

    This proves without waiting that no other message is delivered.
    """
    await publish(client, topic, [MARKER])
    received: list[encore.Message] = []
    while True:
        [message] = await take(consumer, 1)
        if message.data() == MARKER:
            await consumer.acknowledge(message)
            return received
        received.append(message)


async def eventually(
    check: Callable[[], Awaitable[Any]], expected: Any, *, timeout: float = WAIT_S
) -> None:
    """Repeat `check` until it returns `expected`."""
    end = time.monotonic() + timeout
    while (actual := await check()) != expected:
        assert time.monotonic() < end, f"{actual!r} after {timeout} s, expected {expected!r}"
        await asyncio.sleep(0.05)


async def work_off(
    consumer: encore.Consumer,
    expected: Iterable[bytes],
    rng: Random,
    *,
    nack_share: float = 0.3,
    nack_delay: float = 0.2,
    nack_times: int = 3,
    step: Callable[[int], Awaitable[None]] | None = None,
    timeout: float = 40.0,
) -> list[bytes]:
    """Ack or nack messages at random until all are acked.

    Args:
        nack_times: Most nacks of one message.
        step: Called with the number of messages received so far.

    Returns:
        Messages that were delivered again after their ack. It must be empty.
    """
    unacked, nacks = set(expected), Counter[bytes]()
    acked: set[bytes] = set()
    redelivered: list[bytes] = []
    received = 0
    end = time.monotonic() + timeout
    while unacked:
        try:
            message = await consumer.receive(timeout=max(0.0, end - time.monotonic()))
        except encore.ReceiveTimeout:
            raise AssertionError(
                f"{len(unacked)} not received in {timeout} s, first {sorted(unacked)[:5]}; "
                f"{received} received; {consumer.statistics()}"
            ) from None
        received += 1
        body = message.data()
        if body in acked:
            redelivered.append(body)
        if body not in acked and nacks[body] < nack_times and rng.random() < nack_share:
            nacks[body] += 1
            await consumer.negative_acknowledge(message, delay=nack_delay * rng.random())
        else:
            await consumer.acknowledge(message)
            acked.add(body)
            unacked.discard(body)
        if step is not None:
            await step(received)
    return redelivered
