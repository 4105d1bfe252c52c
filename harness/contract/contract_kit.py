"""Steps that tests share: publish, take, nothing more, work off."""

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
    """Payloads that tell the order."""
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
    """Publish in order; in entries of `batch` messages, or 0 for plain ones; `by_key`, each has
    those of one key."""
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
        await asyncio.sleep(0)  # each has handed its message over
        await producer.flush()
        return list(await asyncio.gather(*sends))


async def subscribe(
    client: encore.Client,
    topic: Any,
    kind: encore.ConsumerType = encore.ConsumerType.Shared,
    **options: Any,
) -> encore.Consumer:
    """A consumer from the beginning."""
    options.setdefault("initial_position", encore.InitialPosition.Earliest)
    return await client.subscribe(topic, SUBSCRIPTION, consumer_type=kind, **options)


async def take(
    consumer: encore.Consumer, count: int, *, timeout: float = WAIT_S
) -> list[encore.Message]:
    """The next so many messages, or an error that says how many came."""
    got: list[encore.Message] = []
    end = time.monotonic() + timeout
    while len(got) < count:
        try:
            got.append(await consumer.receive(timeout=max(0.0, end - time.monotonic())))
        except encore.ReceiveTimeout:
            raise AssertionError(f"{len(got)} of {count} came: {data(got)}") from None
    return got


def data(messages: Iterable[encore.Message]) -> list[bytes]:
    """Their payloads."""
    return [message.data() for message in messages]


async def ack_all(consumer: encore.Consumer, messages: Iterable[encore.Message]) -> None:
    await consumer.acknowledge(list(messages))


async def before_marker(
    client: encore.Client, topic: str, consumer: encore.Consumer
) -> list[encore.Message]:
    """What is still delivered ahead of a message published now: proof without waiting."""
    await publish(client, topic, [MARKER])
    got: list[encore.Message] = []
    while True:
        [message] = await take(consumer, 1)
        if message.data() == MARKER:
            await consumer.acknowledge(message)
            return got
        got.append(message)


async def eventually(
    check: Callable[[], Awaitable[Any]], expected: Any, *, timeout: float = WAIT_S
) -> None:
    """Asks until the answer is right."""
    end = time.monotonic() + timeout
    while (found := await check()) != expected:
        assert time.monotonic() < end, f"{found!r} after {timeout} s, expected {expected!r}"
        await asyncio.sleep(0.05)


async def work_off(
    consumer: encore.Consumer,
    wanted: Iterable[bytes],
    rng: Random,
    *,
    nack_share: float = 0.3,
    nack_delay: float = 0.2,
    nack_times: int = 3,
    step: Callable[[int], Awaitable[None]] | None = None,
    timeout: float = 40.0,
) -> list[bytes]:
    """Ack or nack at random until all is acked; each message is nacked `nack_times` at most.

    Args:
        step: Called with the number of messages received so far.

    Returns:
        What was handed out again after its ack: must be nothing.
    """
    missing, nacks = set(wanted), Counter[bytes]()
    acked: set[bytes] = set()
    again: list[bytes] = []
    received = 0
    end = time.monotonic() + timeout
    while missing:
        try:
            message = await consumer.receive(timeout=max(0.0, end - time.monotonic()))
        except encore.ReceiveTimeout:
            raise AssertionError(
                f"{len(missing)} never came in {timeout} s, first {sorted(missing)[:5]}; "
                f"{received} received; {consumer.statistics()}"
            ) from None
        received += 1
        body = message.data()
        if body in acked:
            again.append(body)
        if body not in acked and nacks[body] < nack_times and rng.random() < nack_share:
            nacks[body] += 1
            await consumer.negative_acknowledge(message, delay=nack_delay * rng.random())
        else:
            await consumer.acknowledge(message)
            acked.add(body)
            missing.discard(body)
        if step is not None:
            await step(received)
    return again
