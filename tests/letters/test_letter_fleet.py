"""Attempts and dead letters of a batch with poison messages on several consumers.

The tests use the memory transport and virtual time. `integration/test_letter_fleet.py` has the same
cases on a real Pulsar.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from forwarding_kit import DEAD, TOPIC, bodies, named, open_consumer, read_out

import pulsar_encore as encore
from pulsar_encore import letters
from pulsar_encore.consumer.forwarding import last_attempts
from pulsar_encore.testing import Fault, FaultPlan, MemoryTransport

SIZE = 10
POISON = [b"p%d" % each for each in range(SIZE)]
ONE_POISON = [b"p0", *(b"h%d" % each for each in range(1, SIZE))]
MOST = [1, 3]
FLEETS = [3, 10]

Fail = Callable[[encore.Consumer, encore.Message], Awaitable[None]]


async def by_nack(consumer: encore.Consumer, message: encore.Message) -> None:
    await consumer.negative_acknowledge(message)


async def by_id(consumer: encore.Consumer, message: encore.Message) -> None:
    await consumer.negative_acknowledge(message.message_id())


async def by_timeout(consumer: encore.Consumer, message: encore.Message) -> None:
    """Drop the message."""


async def by_giving_all_back(consumer: encore.Consumer, message: encore.Message) -> None:
    await asyncio.sleep(0.05)  # until this consumer has all of the batch
    consumer.redeliver_unacknowledged_messages()


class Fleet:
    """Consumers that fail each message that begins with p, and ack the others.

    Attributes:
        attempts: Number of attempts at each payload, at all consumers.
        counts: `redelivery_count` of each attempt, by payload.
    """

    def __init__(self) -> None:
        self.attempts: Counter[bytes] = Counter()
        self.counts: dict[bytes, list[int]] = {}
        self.last = 0.0

    async def work(self, consumer: encore.Consumer, fail: Fail) -> None:
        while True:
            message = await consumer.receive()
            self._seen(message)
            if self.fails(message):
                await fail(consumer, message)
            else:
                await consumer.acknowledge(message)

    async def lease(self, consumer: encore.Consumer) -> None:
        """Let the leases of poison messages expire."""
        while True:
            for lease in await consumer.pop(1, lease=1.0, wait=10.0):
                self._seen(lease.message)
                if not self.fails(lease.message):
                    await lease.ack()

    def _seen(self, message: encore.Message) -> None:
        self.last = asyncio.get_running_loop().time()
        self.attempts[message.data()] += 1
        self.counts.setdefault(message.data(), []).append(message.redelivery_count())

    def fails(self, message: encore.Message) -> bool:
        return message.data().startswith(b"p")

    async def quiet(self) -> None:
        """Wait until no message was delivered for a minute."""
        loop = asyncio.get_running_loop()
        while loop.time() < self.last + 60:
            await asyncio.sleep(self.last + 60 - loop.time())


class FailsOnce(Fleet):
    """Messages that begin with o fail at their first attempt."""

    def fails(self, message: encore.Message) -> bool:
        once = message.data().startswith(b"o") and self.attempts[message.data()] == 1
        return once or super().fails(message)


@asynccontextmanager
async def opened(client: encore.Client, number: int, **options: Any) -> AsyncIterator[Any]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                await open_consumer(client, retry_enable=False, **options)
            )
            for _ in range(number)
        ]


async def run(
    client: encore.Client,
    transport: MemoryTransport,
    payloads: list[bytes],
    fail: Fail | None,
    number: int,
    fleet: Fleet | None = None,
    **options: Any,
) -> tuple[Fleet, Counter[bytes]]:
    """Run one batch until it is settled. Returns the fleet and the dead letters."""
    fleet = fleet or Fleet()
    if fail is by_timeout:
        options["unacked_messages_timeout_ms"] = 1_000
    async with opened(client, number, **options) as consumers:
        tasks = [
            asyncio.ensure_future(fleet.lease(each) if fail is None else fleet.work(each, fail))
            for each in consumers
        ]
        transport.put(TOPIC, *payloads)
        await fleet.quiet()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert transport.backlog(TOPIC, "s") == 0
    return fleet, Counter(bodies(await read_out(client, DEAD)))


@pytest.mark.parametrize("fail", [by_nack, by_id, by_timeout, None])
@pytest.mark.parametrize("most", MOST)
@pytest.mark.parametrize("number", FLEETS)
async def test_a_batch_that_fails_is_tried_m_plus_1_times_on_any_number_of_consumers(
    client: encore.Client, transport: MemoryTransport, number: int, most: int, fail: Fail | None
) -> None:
    fleet, dead = await run(client, transport, POISON, fail, number, most=most)
    assert fleet.attempts == Counter(dict.fromkeys(POISON, most + 1))
    assert dead == Counter(POISON)
    assert set(map(tuple, fleet.counts.values())) == {tuple(range(most + 1))}


@pytest.mark.parametrize("fail", [by_nack, by_id, by_timeout, None])
@pytest.mark.parametrize("most", MOST)
@pytest.mark.parametrize("number", FLEETS)
async def test_one_poison_message_among_healthy_ones_is_dead_lettered_alone(
    client: encore.Client, transport: MemoryTransport, number: int, most: int, fail: Fail | None
) -> None:
    fleet, dead = await run(client, transport, ONE_POISON, fail, number, most=most)
    assert fleet.attempts[b"p0"] == most + 1
    assert dead == Counter([b"p0"])


@pytest.mark.parametrize("number", FLEETS)
@pytest.mark.parametrize("most", MOST)
async def test_redeliver_unacknowledged_messages_counts_as_an_attempt(
    client: encore.Client, transport: MemoryTransport, number: int, most: int
) -> None:
    fleet, dead = await run(
        client, transport, [b"p0", b"p1"], by_giving_all_back, number, most=most
    )
    assert max(fleet.attempts.values()) <= 2 * (most + 1)
    assert set(dead) == {b"p0", b"p1"}


@pytest.mark.parametrize("fail", [by_nack, by_timeout, None])
async def test_key_shared_counts_attempts_the_same_way(
    client: encore.Client, transport: MemoryTransport, fail: Fail | None
) -> None:
    kind = encore.ConsumerType.KeyShared
    fleet, dead = await run(client, transport, ONE_POISON, fail, 3, most=2, consumer_type=kind)
    assert fleet.attempts[b"p0"] == 3
    assert dead == Counter([b"p0"])


async def test_ordered_leases_count_attempts_the_same_way(
    client: encore.Client, transport: MemoryTransport
) -> None:
    fleet, dead = await run(
        client,
        transport,
        ONE_POISON,
        None,
        3,
        most=2,
        consumer_type=encore.ConsumerType.KeyShared,
        ordered_leases=True,
    )
    assert fleet.attempts[b"p0"] == 3
    assert dead == Counter([b"p0"])


async def test_siblings_that_fail_once_are_not_dead_lettered_with_a_poison_message(
    client: encore.Client, transport: MemoryTransport
) -> None:
    payloads = [b"p0", *(b"o%d" % each for each in range(1, SIZE))]
    fleet, dead = await run(client, transport, payloads, by_nack, 3, FailsOnce(), most=3)
    assert fleet.attempts[b"p0"] <= 3 + 2
    assert dead == Counter([b"p0"])


async def test_a_sibling_without_an_attempt_is_delivered_after_any_number_of_redeliveries(
    client: encore.Client, transport: MemoryTransport
) -> None:
    async with opened(client, 1, most=1) as (first,):
        transport.put(TOPIC, b"healthy", b"other")
        await asyncio.sleep(1)
        # No message is received; the broker counts each redelivery.
        for _ in range(5):
            first.redeliver_unacknowledged_messages()
            await asyncio.sleep(1)
        async with opened(client, 1, most=1) as (second,):
            await first.close()
            message = await second.receive(timeout=10)
            assert (message.data(), message.redelivery_count()) == (b"healthy", 5)
            await second.acknowledge(message)
            await second.acknowledge(await second.receive(timeout=10))
    assert await read_out(client, DEAD) == []


async def test_the_dead_letter_has_the_number_of_attempts_over_all_consumers(
    client: encore.Client, transport: MemoryTransport
) -> None:
    await run(client, transport, POISON, by_timeout, 5, most=3)
    dead = await read_out(client, DEAD)
    assert named(dead, letters.ATTEMPTS) == ["4"] * SIZE
    assert set(named(dead, letters.REASON)) == {"ack timeout"}


async def test_a_payload_that_is_no_longer_kept_costs_an_attempt_and_loses_no_message(
    client: encore.Client, transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_attempts, "MAX_BYTES", 0)
    fleet, dead = await run(client, transport, POISON, by_timeout, 3, most=1)
    assert max(fleet.attempts.values()) <= 4
    assert set(dead) == set(POISON)


async def test_a_message_that_is_acked_at_its_last_attempt_is_not_kept(
    client: encore.Client, transport: MemoryTransport
) -> None:
    async with opened(client, 1, most=1, unacked_messages_timeout_ms=1_000) as (consumer,):
        for round_ in range(3):
            transport.put(TOPIC, b"a", b"b")
            for message in [await consumer.receive(), await consumer.receive()]:
                await consumer.negative_acknowledge(message)
            for message in [await consumer.receive(), await consumer.receive()]:
                await consumer.acknowledge(message)
            kept = consumer._parts.arrivals._last
            assert len(kept) <= 2, round_
        await asyncio.sleep(60)
    assert await read_out(client, DEAD) == []


async def test_a_letter_that_fails_has_its_message_redelivered(
    client: encore.Client, transport: MemoryTransport
) -> None:
    refused = Fault(kind="refuse", command="SEND", topic=DEAD, times=3, error="NotAllowedError")
    transport.faults = FaultPlan([refused])
    fleet, dead = await run(client, transport, POISON, by_timeout, 3, most=1)
    assert set(dead) == set(fleet.attempts) == set(POISON)
