"""Measurements of the stock client, and the publishing for both sides.

This is the only module outside `transport/stock` that imports `pulsar`.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pulsar
import pulsar.asyncio
from pulsar import ConsoleLogger, ConsumerType, InitialPosition, LoggerLevel

from .killed_nack import killed_after
from .workload import (
    ENTRIES_PER_LEDGER,
    LOGIN,
    PAYLOAD,
    SUBSCRIPTION,
    Figures,
    Stopwatch,
    resident_mb,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHARED: dict[str, Any] = {
    "consumer_type": ConsumerType.Shared,
    "initial_position": InitialPosition.Earliest,
}


def _quiet() -> Any:
    return ConsoleLogger(LoggerLevel.Error)


@contextmanager
def _client(url: str) -> Iterator[pulsar.Client]:
    client = pulsar.Client(url, logger=_quiet(), **LOGIN)
    try:
        yield client
    finally:
        client.close()


def publish(
    url: str,
    topic: str,
    count: int,
    *,
    batch: int = 0,
    every_s: float = 0.0,
    burst: int = 1,
    size: int = len(PAYLOAD),
) -> None:
    """Publish `count` messages.

    Args:
        batch: Messages per entry; 0 for no batches.
        every_s: Interval between bursts in s; 0 for no pauses.
    """
    with _client(url) as client:
        producer = client.create_producer(
            topic,
            batching_enabled=batch > 0,
            batching_max_messages=max(batch, 2),
            batching_max_allowed_size_in_bytes=1024 * 1024,
            batching_max_publish_delay_ms=1000,
            max_pending_messages=20_000,
            block_if_queue_full=True,
        )
        payload = PAYLOAD[:1] * size
        start = time.monotonic()
        for number in range(count):
            if every_s:
                time.sleep(max(0.0, start + number // burst * every_s - time.monotonic()))
            producer.send_async(payload, None)
        producer.flush()
        producer.close()


def fill(url: str, topic: str, *, count: int, batch: int, size: int = len(PAYLOAD)) -> Figures:
    """Publish before a comparison, as a measurement with a process of its own.

    A subscription that never acks keeps the messages; otherwise the broker would drop acked ones.
    """
    with _client(url) as client:
        client.subscribe(topic, "keep", **_SHARED).close()
    clock = Stopwatch()
    publish(url, topic, count, batch=batch, size=size)
    return {"seconds": clock()}


async def continuous_nacks(
    url: str, topic: str, *, delay_s: float, every_s: float, for_s: float
) -> Figures:
    count = round(for_s / every_s)
    await asyncio.to_thread(publish, url, topic, count)
    client = pulsar.asyncio.Client(url, logger=_quiet(), **LOGIN)
    consumer = await client.subscribe(
        topic, SUBSCRIPTION, negative_ack_redelivery_delay_ms=round(delay_s * 1000), **_SHARED
    )
    messages = [await consumer.receive() for _ in range(count)]
    clock = Stopwatch()
    back: asyncio.Future[float] = asyncio.ensure_future(next_at(consumer, clock))
    for number, message in enumerate(messages):
        await asyncio.sleep(number * every_s - clock())
        await consumer.negative_acknowledge(message)
    stopped = clock()
    await asyncio.wait([back], timeout=2 * delay_s + 2)
    figures: Figures = {"first_s": back.result() if back.done() else None, "stopped_s": stopped}
    await client.close()
    return figures


async def next_at(consumer: Any, clock: Stopwatch) -> float:
    await consumer.receive()
    return clock()


def killed_nack(url: str, topic: str, *, delay_s: float, keep: bool) -> Figures:
    nacks: dict[str, Any] = {"negative_ack_redelivery_delay_ms": round(delay_s * 1000)}

    def nack() -> None:
        publish(url, topic, 1)
        consumer = pulsar.Client(url, logger=_quiet(), **LOGIN).subscribe(
            topic, SUBSCRIPTION, **nacks, **_SHARED
        )
        consumer.negative_acknowledge(consumer.receive())

    killed_after(nack)
    clock = Stopwatch()
    with _client(url) as client:
        consumer = client.subscribe(topic, SUBSCRIPTION, **nacks, **_SHARED)
        try:
            message = consumer.receive(round(3 * delay_s * 1000))
        except pulsar.Timeout:
            return {"back_s": None, "attempt": None}
        back_s = clock()
        consumer.acknowledge(message)
        return {"back_s": back_s, "attempt": message.redelivery_count() + 1}


async def timed_out_receives(
    url: str, topic: str, *, count: int, burst: int, every_s: float, timeout_s: float
) -> Figures:
    client = pulsar.asyncio.Client(url, logger=_quiet(), **LOGIN)
    consumer = await client.subscribe(topic, SUBSCRIPTION, **_SHARED)
    publishing = asyncio.to_thread(publish, url, topic, count, every_s=every_s, burst=burst)
    sender = asyncio.ensure_future(publishing)
    seen = timed_out = 0
    quiet = 0
    while seen < count and quiet < 5:
        try:
            # After the last message was published, five longer polls wait for messages in flight.
            wait_s = 0.2 if sender.done() else timeout_s
            message = await asyncio.wait_for(consumer.receive(), wait_s)
        except TimeoutError:
            timed_out += 1
            quiet += sender.done()
        else:
            seen += 1
            await consumer.acknowledge(message)
    await sender
    await client.close()
    return {"seen": seen, "sent": count, "timed_out": timed_out}


async def two_delays(url: str, topic: str, *, short_s: float, long_s: float) -> Figures:
    """Nack two messages of one batch. The consumer has only one delay, the shorter one."""
    await asyncio.to_thread(publish, url, topic, 2, batch=2)
    client = pulsar.asyncio.Client(url, logger=_quiet(), **LOGIN)
    consumer = await client.subscribe(
        topic, SUBSCRIPTION, negative_ack_redelivery_delay_ms=round(short_s * 1000), **_SHARED
    )
    messages = [await consumer.receive(), await consumer.receive()]
    clock = Stopwatch()
    for message in messages:
        await consumer.negative_acknowledge(message)
    back: dict[int, float] = {}
    while len(back) < 2:
        message = await consumer.receive()
        index = message.message_id().batch_index()
        back.setdefault(index, clock())
        await consumer.acknowledge(message)
    await client.close()
    return {"short_s": back.get(0), "long_s": back.get(1)}


def pending_memory(url: str, topic: str, *, count: int, delay_s: float) -> Figures:
    with _client(url) as client:
        consumer = client.subscribe(
            topic, SUBSCRIPTION, negative_ack_redelivery_delay_ms=round(delay_s * 1000), **_SHARED
        )
        before = resident_mb()
        clock = Stopwatch()
        for number in range(count):
            ledger, entry = divmod(number, ENTRIES_PER_LEDGER)
            # The client's methods take the internal id that its messages carry.
            consumer.negative_acknowledge(pulsar.MessageId(-1, ledger + 1, entry, -1)._msg_id)
        return {"seconds": clock(), "mb": resident_mb() - before, "count": count}


def poison_message(url: str, topic: str, *, most: int) -> Figures:
    policy = pulsar.ConsumerDeadLetterPolicy(most, f"{topic}-DLQ")
    with _client(url) as client:
        consumer = client.subscribe(
            topic,
            SUBSCRIPTION,
            negative_ack_redelivery_delay_ms=100,
            dead_letter_policy=policy,
            **_SHARED,
        )
        client.create_producer(topic).send(PAYLOAD, {"order": "7"}, event_timestamp=1000)
        deliveries = 0
        while deliveries <= most:
            consumer.negative_acknowledge(consumer.receive())
            deliveries += 1
        letter = client.subscribe(f"{topic}-DLQ", SUBSCRIPTION, **_SHARED).receive()
        back = {"order", "REAL_TOPIC", "ORIGIN_MESSAGE_ID"}
        evidence_count = len(letter.properties().keys() - back)
        return {
            "deliveries": deliveries,
            "evidence": evidence_count,
            "event_time": letter.event_timestamp() == 1000,
        }


async def throughput_asyncio(url: str, topic: str, *, count: int, subscription: str) -> Figures:
    client = pulsar.asyncio.Client(url, logger=_quiet(), **LOGIN)
    consumer = await client.subscribe(topic, subscription, **_SHARED)
    message = await consumer.receive()
    clock, cpu = Stopwatch(), time.process_time()
    for _ in range(count):
        await consumer.acknowledge(message)
        message = await consumer.receive()
    seconds, cpu_s = clock(), time.process_time() - cpu
    await client.close()
    return {"per_s": count / seconds, "cpu_us": cpu_s / count * 1e6}


def throughput_sync(url: str, topic: str, *, count: int, subscription: str) -> Figures:
    with _client(url) as client:
        consumer = client.subscribe(topic, subscription, **_SHARED)
        message = consumer.receive()
        clock, cpu = Stopwatch(), time.process_time()
        for _ in range(count):
            consumer.acknowledge(message)
            message = consumer.receive()
        seconds, cpu_s = clock(), time.process_time() - cpu
        return {"per_s": count / seconds, "cpu_us": cpu_s / count * 1e6}
