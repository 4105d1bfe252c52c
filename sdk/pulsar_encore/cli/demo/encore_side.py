"""Measurements of this SDK, with the same workloads as `stock_side`."""

from __future__ import annotations

import asyncio
import tempfile
import time
from typing import Any

from ... import (
    Client,
    ConsumerType,
    DeadLetterPolicy,
    InitialPosition,
    ReceiveTimeout,
    RocksState,
    letters,
)
from ...deadletters import DeadLetters, Selection
from ...values.message_id import MessageId
from .killed_nack import killed_after
from .stock_side import next_at, publish
from .workload import (
    ENTRIES_PER_LEDGER,
    LOGIN,
    PAYLOAD,
    SUBSCRIPTION,
    Figures,
    Stopwatch,
    resident_mb,
)

_SHARED: dict[str, Any] = {
    "consumer_type": ConsumerType.Shared,
    "initial_position": InitialPosition.Earliest,
}


def _client(url: str) -> Client:
    return Client(url, **LOGIN)


async def continuous_nacks(
    url: str, topic: str, *, delay_s: float, every_s: float, for_s: float
) -> Figures:
    count = round(for_s / every_s)
    await asyncio.to_thread(publish, url, topic, count)
    async with (
        _client(url) as client,
        await client.subscribe(
            topic, SUBSCRIPTION, negative_ack_redelivery_delay_ms=round(delay_s * 1000), **_SHARED
        ) as consumer,
    ):
        messages = [await consumer.receive() for _ in range(count)]
        clock = Stopwatch()
        back = asyncio.ensure_future(next_at(consumer, clock))
        for number, message in enumerate(messages):
            await asyncio.sleep(number * every_s - clock())
            await consumer.negative_acknowledge(message)
        stopped = clock()
        await asyncio.wait([back], timeout=2 * delay_s + 2)
        if not back.done():
            back.cancel()
            return {"first_s": None, "stopped_s": stopped}
        return {"first_s": back.result(), "stopped_s": stopped}


async def timed_out_receives(
    url: str, topic: str, *, count: int, burst: int, every_s: float, timeout_s: float
) -> Figures:
    async with (
        _client(url) as client,
        await client.subscribe(topic, SUBSCRIPTION, **_SHARED) as consumer,
    ):
        publishing = asyncio.to_thread(publish, url, topic, count, every_s=every_s, burst=burst)
        sender = asyncio.ensure_future(publishing)
        seen = timed_out = 0
        quiet = 0
        while seen < count and quiet < 5:
            try:
                wait_s = 0.2 if sender.done() else timeout_s
                message = await asyncio.wait_for(consumer.receive(), wait_s)
            except TimeoutError:
                timed_out += 1
                quiet += sender.done()
            else:
                seen += 1
                await consumer.acknowledge(message)
        await sender
        return {"seen": seen, "sent": count, "timed_out": timed_out}


async def two_delays(url: str, topic: str, *, short_s: float, long_s: float) -> Figures:
    await asyncio.to_thread(publish, url, topic, 2, batch=2)
    async with (
        _client(url) as client,
        await client.subscribe(topic, SUBSCRIPTION, **_SHARED) as consumer,
    ):
        messages = [await consumer.receive(), await consumer.receive()]
        clock = Stopwatch()
        for message, delay_s in zip(messages, (short_s, long_s), strict=True):
            await consumer.negative_acknowledge(message, delay=delay_s)
        back: dict[int, float] = {}
        while len(back) < 2:
            message = await consumer.receive()
            back.setdefault(message.message_id().batch_index(), clock())
            await consumer.acknowledge(message)
        return {"short_s": back.get(0), "long_s": back.get(1)}


def killed_nack(url: str, topic: str, *, delay_s: float, keep: bool) -> Figures:
    with tempfile.TemporaryDirectory(prefix="encore-demo-") as folder:
        state = RocksState(folder + "/state") if keep else None

        async def nack() -> None:
            await asyncio.to_thread(publish, url, topic, 1)
            client = _client(url)
            consumer = await client.subscribe(topic, SUBSCRIPTION, state=state, **_SHARED)
            message = await consumer.receive()
            await consumer.negative_acknowledge(message, delay=delay_s)

        async def wait(clock: Stopwatch) -> Figures:
            async with (
                _client(url) as client,
                await client.subscribe(topic, SUBSCRIPTION, state=state, **_SHARED) as consumer,
            ):
                try:
                    message = await consumer.receive(timeout=3 * delay_s)
                except ReceiveTimeout:
                    return {"back_s": None, "attempt": None}
                back_s = clock()
                await consumer.acknowledge(message)
                return {"back_s": back_s, "attempt": message.redelivery_count() + 1}

        killed_after(lambda: asyncio.run(nack()))
        return asyncio.run(wait(Stopwatch()))


async def pending_memory(url: str, topic: str, *, count: int, delay_s: float) -> Figures:
    async with (
        _client(url) as client,
        await client.subscribe(
            topic, SUBSCRIPTION, max_unacked_messages=2 * count, **_SHARED
        ) as consumer,
    ):
        before = resident_mb()
        clock = Stopwatch()
        for number in range(count):
            ledger, entry = divmod(number, ENTRIES_PER_LEDGER)
            await consumer.negative_acknowledge(MessageId(-1, ledger + 1, entry), delay=delay_s)
        assert consumer.statistics().nacked == count
        return {"seconds": clock(), "mb": resident_mb() - before, "count": count}


async def poison_message(url: str, topic: str, *, most: int) -> Figures:
    policy = DeadLetterPolicy(max_redeliver_count=most, dead_letter_topic=f"{topic}-DLQ")
    async with (
        _client(url) as client,
        await client.subscribe(
            topic, SUBSCRIPTION, dead_letter_policy=policy, **_SHARED
        ) as consumer,
        await client.create_producer(topic) as producer,
        await client.create_reader(f"{topic}-DLQ", MessageId.earliest) as reader,
    ):
        await producer.send(PAYLOAD, {"order": "7"}, event_timestamp=1000)
        deliveries = 0
        while deliveries <= most:
            message = await consumer.receive()
            error = ValueError("no such order")
            await consumer.negative_acknowledge(message, delay=0.1, error=error)
            deliveries += 1
        letter = await reader.read_next()
        evidence_count = len(letter.properties().keys() & letters.EVIDENCE)
        has_event_time = letter.event_timestamp() == 1000
        await DeadLetters(client, f"{topic}-DLQ").replay(Selection(real_topics=[topic]))
        message = await consumer.receive()
        replayed = message.properties().get(letters.REPLAY_ID) is not None
        await consumer.acknowledge(message)
        attempt = message.redelivery_count() + 1
        return {
            "deliveries": deliveries,
            "evidence": evidence_count,
            "event_time": has_event_time,
            "replayed": replayed,
            "attempt": attempt,
        }


async def throughput(url: str, topic: str, *, count: int, subscription: str) -> Figures:
    async with (
        _client(url) as client,
        await client.subscribe(topic, subscription, **_SHARED) as consumer,
    ):
        message = await consumer.receive()
        clock, cpu = Stopwatch(), time.process_time()
        for _ in range(count):
            await consumer.acknowledge(message)
            message = await consumer.receive()
        seconds, cpu_s = clock(), time.process_time() - cpu
        return {"per_s": count / seconds, "cpu_us": cpu_s / count * 1e6}
