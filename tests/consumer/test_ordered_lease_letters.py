"""Leases in the order of their keys, where messages fail too often: a key waits for its letter."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest
from consumer_kit import TOPIC, now_s, receive_all, settle
from ordered_kit import put_keyed

from pulsar_encore import (
    Client,
    Consumer,
    ConsumerType,
    DeadLetterPolicy,
    InitialPosition,
    Lease,
    LeaseLostError,
    RocksState,
)
from pulsar_encore.consumer.leases.key_queues import KeyQueues
from pulsar_encore.testing import Fault, FaultPlan, MemoryTransport

DEAD = "persistent://public/default/dead"
BATCHES = pytest.mark.parametrize("batch", [1, 4])
LETTER_S = 5.0  # the duration of a slow letter


def refuse_letters(transport: MemoryTransport, times: int) -> None:
    transport.faults = FaultPlan(
        [Fault(kind="refuse", command="SEND", topic=DEAD, times=times, error="NotAllowedError")]
    )


def slow_letters(transport: MemoryTransport) -> None:
    """It takes `LETTER_S` until there is a producer for them."""
    slow = Fault(kind="delay", command="PRODUCER", topic=DEAD, delay_ms=int(LETTER_S * 1000))
    transport.faults = FaultPlan([slow])


async def subscribe_with_dead_letters(client: Client, **options: Any) -> Consumer:
    """Each message is handed out twice, then it is a dead letter."""
    return await client.subscribe(
        TOPIC,
        "s",
        ConsumerType.KeyShared,
        initial_position=InitialPosition.Earliest,
        dead_letter_policy=DeadLetterPolicy(1, dead_letter_topic=DEAD),
        ordered_leases=True,
        **options,
    )


async def after_spent(
    transport: MemoryTransport, client: Client, count: int, keys: int, kept: Path
) -> Consumer:
    """Publish `count` messages of each key; the first has no attempts left from before."""
    put_keyed(transport, 1, keys)
    before = await client.subscribe(
        TOPIC,
        "s",
        ConsumerType.KeyShared,
        initial_position=InitialPosition.Earliest,
        ordered_leases=True,
        state=RocksState(kept),
    )
    failed = 0
    while failed < 2 * keys:
        for lease in await before.pop(1000, lease=1000, wait=10):
            if lease.attempt <= 2:
                await lease.nack(0)
                failed += 1
    await before.close()
    put_keyed(transport, count, keys, first=1)
    return await subscribe_with_dead_letters(client, state=RocksState(kept))


def number_of(lease: Lease) -> int:
    return int(lease.message.data().split(b":")[1])


async def drain(consumer: Consumer, wait: float) -> list[tuple[bytes, float]]:
    """Pop and ack until no message arrives; return the payloads with their times."""
    got = []
    while leases := await consumer.pop(wait=wait, max_per_key=1):
        for lease in leases:
            got.append((lease.message.data(), now_s()))
            await lease.ack()
    return got


async def letters_of(client: Client) -> list[bytes]:
    reader = await client.subscribe(DEAD, "d", initial_position=InitialPosition.Earliest)
    return [message.data() for message in await receive_all(reader)]


@BATCHES
@pytest.mark.parametrize("beside", ["lost", "asked again", "sought", "nothing"])
async def test_a_dead_letter_that_fails_is_sent_again_and_its_key_waits(
    transport: MemoryTransport, beside: str, batch: int
) -> None:
    put_keyed(transport, 4, 1, batch)
    async with Client("pulsar://nowhere:6650", transport=transport) as client:
        consumer = await subscribe_with_dead_letters(client)
        (bad,) = await consumer.pop(wait=5, max_per_key=1)
        await bad.nack(0)
        (bad,) = await consumer.pop(wait=5, max_per_key=1)
        assert (bad.attempt, number_of(bad)) == (2, 0)
        refuse_letters(transport, 2)
        await bad.nack(0)
        if beside == "lost":
            transport.disconnect()
            await settle()
            transport.reconnect()
        elif beside == "asked again":
            consumer.redeliver_unacknowledged_messages()
        elif beside == "sought":
            await consumer.seek(bad.message.message_id())
        got = [text for text, _ in await drain(consumer, wait=100)]
        assert got[-3:] == [b"0:1", b"0:2", b"0:3"]
        assert consumer.statistics().unacked == 0
        if beside != "sought":
            assert len(got) == 3
            assert await letters_of(client) == [b"0:0"]
    assert transport.backlog(TOPIC, "s") == 0


async def test_a_message_without_attempts_left_is_dead_lettered_before_its_key_goes_on(
    transport: MemoryTransport, tmp_path: Path
) -> None:
    async with Client("pulsar://nowhere:6650", transport=transport) as client:
        slow_letters(transport)
        consumer = await after_spent(transport, client, 3, 2, tmp_path)
        transport.put(TOPIC, b"other", key="other")
        began = now_s()
        got = await drain(consumer, wait=100)
        assert [text for text, when in got if when - began < LETTER_S] == [b"other"]
        for key in (b"0", b"1"):
            assert [text for text, _ in got if text[:1] == key] == [key + b":1", key + b":2"]
        assert sorted(await letters_of(client)) == [b"0:0", b"1:0"]
    assert transport.backlog(TOPIC, "s") == 0


@pytest.mark.parametrize("beside", ["lost", "nothing"])
async def test_a_message_without_attempts_left_is_kept_until_its_dead_letter_is_stored(
    transport: MemoryTransport, client: Client, tmp_path: Path, beside: str
) -> None:
    refuse_letters(transport, 5)
    consumer = await after_spent(transport, client, 3, 3, tmp_path)
    assert await consumer.pop(wait=0.05, max_per_key=1) == [], "what follows waits"
    if beside == "lost":
        transport.disconnect()
        await settle()
        transport.reconnect()
    got = [text for text, _ in await drain(consumer, wait=200)]
    for key in (b"0", b"1", b"2"):
        assert [text for text in got if text[:1] == key] == [key + b":1", key + b":2"]
    assert sorted(await letters_of(client)) == [b"0:0", b"1:0", b"2:0"]
    assert consumer.statistics().unacked == 0


async def test_letters_in_flight_cost_few_steps_until_they_are_stored(
    transport: MemoryTransport, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = 0
    judge = KeyQueues._advance_to_leasable

    def counting(self: KeyQueues, *arguments: Any) -> bool:
        nonlocal checks
        checks += 1
        return judge(self, *arguments)

    keys = 200
    slow_letters(transport)
    consumer = await after_spent(transport, client, 2, keys, tmp_path)
    monkeypatch.setattr(KeyQueues, "_advance_to_leasable", counting)
    assert await consumer.pop(1000, wait=LETTER_S - 1, max_per_key=1) == []
    assert checks <= 3 * keys  # each 20 ms it would be 200 of each key
    (first, *_) = await consumer.pop(1, wait=100, max_per_key=1)
    assert number_of(first) == 1
    assert checks <= 6 * keys


@BATCHES
async def test_a_letter_in_flight_behind_a_lease_is_sent_again_after_a_lost_connection(
    transport: MemoryTransport, batch: int
) -> None:
    put_keyed(transport, 4, 1, batch)
    async with Client("pulsar://nowhere:6650", transport=transport) as client:
        consumer = await subscribe_with_dead_letters(client)
        first, second, _third, _fourth = await consumer.pop(4, lease=1_000, wait=5)
        await second.nack(0)
        await first.nack(0)
        first, second, _third, _fourth = await consumer.pop(4, lease=1_000, wait=5)
        assert (first.attempt, second.attempt, number_of(second)) == (2, 2, 1)
        refuse_letters(transport, 3)
        await second.nack(0)
        transport.disconnect()
        await settle()
        transport.reconnect()
        await asyncio.sleep(1)
        await first.ack()
        got = [text for text, _ in await drain(consumer, wait=100)]
        assert got == [b"0:2", b"0:3"]
        assert consumer.statistics().unacked == 0
        assert await letters_of(client) == [b"0:1"]
    assert transport.backlog(TOPIC, "s") == 0


@BATCHES
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("most", [1, None])
async def test_no_message_overtakes_the_letter_of_its_key_whatever_fails(
    transport: MemoryTransport, batch: int, seed: int, most: int | None
) -> None:
    """Letters that are refused, late or lost, connections that break, all asked for again.

    Several messages of a key in a list are settled in any order. Letters are then in flight for
    messages behind others that are still leased.
    """
    rng, count, keys = Random(seed), 16, 6
    put_keyed(transport, count, keys, batch)
    poison = {(key, number) for key in range(keys) for number in rng.sample(range(count), 4)}
    done: dict[int, set[int]] = {key: set() for key in range(keys)}
    transport.faults = FaultPlan(
        Fault(
            kind=rng.choice(["refuse", "drop", "close_before", "close_after"]),
            command="SEND",
            topic=DEAD,
            nth=rng.randint(1, 60),
            error="NotAllowedError",
        )
        for _ in range(12)
    )
    async with Client("pulsar://nowhere:6650", transport=transport) as client:
        consumer = await subscribe_with_dead_letters(
            client, max_leases=rng.choice([5, 500]), receiver_queue_size=9
        )
        while sum(map(len, done.values())) < keys * count:
            leases = await consumer.pop(rng.randint(1, 8), lease=30, wait=1_000, max_per_key=most)
            delivered = [tuple(map(int, lease.message.data().split(b":"))) for lease in leases]
            for at, (key, number) in enumerate(delivered):
                before = {number for each, number in delivered[:at] if each == key}
                assert set(range(number)) <= done[key] | before, (seed, key, number)
            if most is None:
                rng.shuffle(leases)
            for lease in leases:
                key, number = map(int, lease.message.data().split(b":"))
                try:
                    if (key, number) in poison:
                        await lease.nack(rng.choice([0, 0.3]))
                        if lease.attempt == 2:
                            done[key].add(number)
                    else:
                        await lease.ack()
                        done[key].add(number)
                except LeaseLostError:
                    continue
            if rng.random() < 0.05:
                transport.disconnect()
                await asyncio.sleep(rng.choice([0, 0.2, 40]))
                transport.reconnect()
            elif rng.random() < 0.05:
                consumer.redeliver_unacknowledged_messages()
        assert await consumer.pop(wait=200, max_per_key=1) == []
        assert consumer.statistics().unacked == 0
        assert set(await letters_of(client)) == {b"%d:%d" % each for each in poison}
    assert transport.backlog(TOPIC, "s") == 0
