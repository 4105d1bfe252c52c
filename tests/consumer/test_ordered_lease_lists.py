"""Ordered leases on several messages of a key in one list."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

import pytest
from consumer_kit import (
    TOPIC,
    Subscribe,
    close_without_backlog,
    now_s,
    parts_of,
    settle,
)
from durable_kit import Host
from ordered_kit import key_and_number, put_keyed, subscribe_ordered

from pulsar_encore import (
    Client,
    ConfigurationError,
    ConsumerType,
    DeadLetterPolicy,
    InitialPosition,
    Lease,
    LeaseLostError,
    MessageId,
)
from pulsar_encore.testing import MemoryTransport

DEAD = "persistent://public/default/dead"
BATCHES = pytest.mark.parametrize("batch", [1, 4])


def attempts(leases: list[Lease]) -> list[tuple[int, int]]:
    """(number, attempt) of each lease."""
    return [(key_and_number(lease)[1], lease.attempt) for lease in leases]


def keys_of(leases: list[Lease]) -> list[int]:
    return [key_and_number(lease)[0] for lease in leases]


@BATCHES
async def test_a_pop_returns_several_messages_of_a_key_in_order(
    transport: MemoryTransport, subscribe: Subscribe, batch: int
) -> None:
    put_keyed(transport, 10, batch=batch)
    consumer = await subscribe_ordered(subscribe)
    leases = await consumer.pop(4, wait=1)
    assert attempts(leases) == [(0, 1), (1, 1), (2, 1), (3, 1)]
    assert await consumer.pop(4, wait=1) == [], "the key is out"
    for lease in leases[:3]:
        await lease.ack()
        assert await consumer.pop(4, wait=0.1) == []
    await leases[3].ack()
    assert attempts(await consumer.pop(100, wait=1)) == [(each, 1) for each in range(4, 10)]


async def test_a_pop_takes_one_message_of_each_key_before_more_of_one_key(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_keyed(transport, 50, keys=1)
    for key in range(1, 4):
        transport.put(TOPIC, b"%d:0" % key, key=f"k{key}")
    consumer = await subscribe_ordered(subscribe)
    await settle()
    leases = await consumer.pop(6, wait=1)
    assert [key_and_number(lease) for lease in leases] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
        (2, 0),
        (3, 0),
    ]


async def test_max_per_key_limits_the_messages_of_each_key_in_a_pop(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_keyed(transport, 5, keys=2)
    consumer = await subscribe_ordered(subscribe)
    await settle()
    leases = await consumer.pop(10, max_per_key=2, wait=1)
    assert [key_and_number(lease) for lease in leases] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for bad in (0, -1, True, "2", 1.5):
        with pytest.raises(ConfigurationError, match="max_per_key"):
            await consumer.pop(max_per_key=bad)  # type: ignore[arg-type]
    plain = await subscribe(subscription_name="plain")
    with pytest.raises(ConfigurationError, match="ordered_leases"):
        await plain.pop(max_per_key=1)


@BATCHES
@pytest.mark.parametrize("failing", [0, 1, 3])
async def test_a_nack_releases_the_leases_behind_it_and_only_its_own_attempt_counts(
    transport: MemoryTransport, subscribe: Subscribe, batch: int, failing: int
) -> None:
    put_keyed(transport, 8, batch=batch)
    consumer = await subscribe_ordered(subscribe)
    leases = await consumer.pop(4, wait=1)
    for lease in leases[:failing]:
        await lease.ack()
    began = now_s()
    await leases[failing].nack(delay=30)
    for lease in leases[failing + 1 :]:
        with pytest.raises(LeaseLostError, match="before it"):
            await lease.ack()
    assert await consumer.pop(wait=10) == []
    again = await consumer.pop(100, wait=100)
    assert 30 <= now_s() - began <= 30.2
    rest = range(failing + 1, 8)
    assert attempts(again) == [(failing, 2), *((each, 1) for each in rest)]


@BATCHES
async def test_an_expired_lease_releases_the_leases_behind_it(
    transport: MemoryTransport, subscribe: Subscribe, batch: int
) -> None:
    put_keyed(transport, 4, batch=batch)
    consumer = await subscribe_ordered(subscribe)
    first, second, *rest = await consumer.pop(4, lease=5, wait=1)
    await first.ack()
    for lease in rest:
        await lease.extend(1_000)
    again = await consumer.pop(4, lease=1_000, wait=100)
    assert attempts(again) == [(1, 2), (2, 1), (3, 1)]
    for lease in (second, *rest):
        with pytest.raises(LeaseLostError):
            await lease.ack()


@BATCHES
async def test_a_nacked_message_in_the_middle_waits_for_earlier_leases_of_its_key(
    transport: MemoryTransport, subscribe: Subscribe, batch: int
) -> None:
    put_keyed(transport, 4, batch=batch)
    consumer = await subscribe_ordered(subscribe)
    first, second, third, _fourth = await consumer.pop(4, lease=1_000, wait=1)
    await second.nack(0)
    with pytest.raises(LeaseLostError):
        await third.nack(0)
    assert await consumer.pop(4, wait=10) == [], "the first is out"
    await first.nack(0)
    assert attempts(await consumer.pop(4, wait=1)) == [(0, 2), (1, 2), (2, 1), (3, 1)]


async def test_a_lease_that_expires_behind_an_open_lease_counts_no_attempt(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    """Work on it cannot have begun. So no message is dead-lettered before it was tried."""
    put_keyed(transport, 3)
    consumer = await subscribe_ordered(subscribe)
    first, second, third = await consumer.pop(3, lease=5, wait=1)
    await first.extend(1_000)
    assert await consumer.pop(3, wait=100) == []
    for lease in (second, third):
        with pytest.raises(LeaseLostError):
            await lease.ack()
    await first.ack()
    assert attempts(await consumer.pop(3, wait=1)) == [(1, 1), (2, 1)]


@BATCHES
async def test_a_later_message_that_is_acked_first_stays_acked(
    transport: MemoryTransport, subscribe: Subscribe, batch: int
) -> None:
    put_keyed(transport, 5, batch=batch)
    consumer = await subscribe_ordered(subscribe)
    first, second, third, fourth = await consumer.pop(4, wait=1)
    await third.ack()
    await third.ack()
    assert await consumer.pop(4, wait=1) == [], "the key waits for the first unacked message"
    await first.nack(0)
    for lease in (second, fourth):
        with pytest.raises(LeaseLostError):
            await lease.ack()
    assert attempts(await consumer.pop(9, wait=1)) == [(0, 2), (1, 1), (3, 1), (4, 1)]


@BATCHES
async def test_messages_settled_without_their_leases_do_not_hold_back_their_key(
    transport: MemoryTransport, subscribe: Subscribe, batch: int
) -> None:
    put_keyed(transport, 6, batch=batch)
    consumer = await subscribe_ordered(subscribe)
    first, second, third, fourth = await consumer.pop(4, lease=20, wait=1)
    await consumer.acknowledge(second.message)
    await consumer.negative_acknowledge(third.message, 0)
    await first.ack()
    for lease in (second, third):
        with pytest.raises(LeaseLostError):
            await lease.ack()
    with pytest.raises(LeaseLostError):
        await fourth.ack()
    assert attempts(await consumer.pop(9, wait=100)) == [(2, 2), (3, 1), (4, 1), (5, 1)]


@BATCHES
async def test_a_dead_lettered_message_lets_the_rest_of_its_key_follow(
    transport: MemoryTransport, client: Client, batch: int
) -> None:
    put_keyed(transport, 4, batch=batch)
    consumer = await client.subscribe(
        TOPIC,
        "s",
        ConsumerType.KeyShared,
        initial_position=InitialPosition.Earliest,
        dead_letter_policy=DeadLetterPolicy(1, dead_letter_topic=DEAD),
        ordered_leases=True,
    )
    for attempt in (1, 2):
        leases = await consumer.pop(4, wait=10)
        assert attempts(leases) == [(0, attempt), (1, 1), (2, 1), (3, 1)]
        await leases[0].nack(0)
        with pytest.raises(LeaseLostError):
            await leases[1].ack()
    leases = await consumer.pop(4, wait=10)
    assert attempts(leases) == [(1, 1), (2, 1), (3, 1)]
    async with await client.create_reader(DEAD, MessageId.earliest) as reader:
        assert (await reader.read_next(timeout_millis=5_000)).data() == b"0:0"


async def test_a_nack_cancels_the_kept_block_of_a_later_lease_of_its_key(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_keyed(transport, 2)
    consumer = await subscribe_ordered(subscribe)
    first, second = await consumer.pop(2, wait=1)

    async def keep() -> None:
        async with second.kept():
            await asyncio.sleep(3_600)

    keeping = asyncio.ensure_future(keep())
    await settle()
    await first.nack(0)
    with pytest.raises(LeaseLostError):
        await keeping


@BATCHES
@pytest.mark.parametrize("seed", range(8))
async def test_each_key_is_processed_in_order_and_no_message_is_lost(
    transport: MemoryTransport, subscribe: Subscribe, batch: int, seed: int
) -> None:
    """A model of each key beside random acks, nacks, ends, lost connections and settlements.

    The model knows which messages are done. A pop gives the first messages of a key that are not
    done, in order. No message is delivered while the model knows that an earlier message of its
    key failed.
    """
    count, keys, rng = 40, 4, Random(seed)
    put_keyed(transport, count, keys, batch)
    consumer = await subscribe_ordered(
        subscribe, receiver_queue_size=9, max_leases=rng.choice([3, 20, 500])
    )
    done: dict[int, set[int]] = defaultdict(set)
    failures: dict[tuple[int, int], int] = defaultdict(int)
    lost = longest = 0
    while sum(map(len, done.values())) < count * keys:
        leases = await consumer.pop(
            rng.randint(1, 20),
            lease=rng.choice([0.5, 3]),
            wait=100,
            max_per_key=rng.choice([None, None, 2]),
        )
        by_key: dict[int, list[Lease]] = defaultdict(list)
        for lease in leases:
            by_key[key_and_number(lease)[0]].append(lease)
        assert keys_of(leases) == sorted(keys_of(leases), key=list(by_key).index)
        for key, of_key in by_key.items():
            longest = max(longest, len(of_key))
            numbers = [key_and_number(lease)[1] for lease in of_key]
            left = [each for each in range(count) if each not in done[key]]
            assert numbers == left[: len(numbers)], f"seed {seed}"
            for lease in of_key:
                known = failures[key_and_number(lease)]
                assert lease.attempt >= known + 1, f"seed {seed}: a failure was forgotten"
        order = list(leases)
        if rng.random() < 0.2:
            rng.shuffle(order)  # acks out of order
        for lease in order:
            key, number = key_and_number(lease)
            choice = rng.random()
            if choice < 0.05:
                await asyncio.sleep(rng.choice([0.3, 1, 4]))  # some end
            try:
                if choice < 0.2:
                    await lease.nack(rng.choice([0, 0.3, 2]))
                    failures[key, number] += 1
                elif choice < 0.25:
                    await lease.extend(2)
                    await lease.ack()
                    done[key].add(number)
                else:
                    await lease.ack()
                    done[key].add(number)
            except LeaseLostError:
                lost += 1
        if rng.random() < 0.1:
            transport.disconnect()
            await asyncio.sleep(rng.choice([0, 0.2]))
            transport.reconnect()
        elif rng.random() < 0.03:
            consumer.redeliver_unacknowledged_messages()
    assert lost > 0 and longest > 1
    assert await consumer.pop(wait=5) == []
    assert consumer.statistics().unacked == 0
    key_queues: Any = parts_of(consumer).popping._key_queues
    assert len(key_queues) == key_queues._bytes == 0 and not key_queues._key_queues
    assert not parts_of(consumer).popping._key_queue_of
    await close_without_backlog(transport, consumer)


@BATCHES
@pytest.mark.parametrize("ends", ["stop", "kill"])
async def test_with_a_state_leases_released_by_a_nack_count_no_attempt(
    transport: MemoryTransport, tmp_path: Path, batch: int, ends: str
) -> None:
    put_keyed(transport, 4, batch=batch)
    host = Host(transport, tmp_path / "disk")
    options: dict[str, Any] = {
        "consumer_type": ConsumerType.KeyShared,
        "ordered_leases": True,
        "state": {"count_attempts": "before"},
    }
    consumer = await host.start(**options)
    leases = await consumer.pop(4, wait=1)
    for lease in leases[:3]:
        assert lease.handle  # written
    await leases[0].nack(60)
    began = now_s()
    await asyncio.sleep(15)  # returned leases are written within `stay_buffer`
    await (host.stop() if ends == "stop" else host.kill())
    consumer = await host.start(**options)
    assert await consumer.pop(4, wait=20) == []
    again = await consumer.pop(4, wait=100)
    assert now_s() - began >= 59.9
    assert attempts(again)[:1] == [(0, 2)]
    assert [number for number, _ in attempts(again)] == [0, 1, 2, 3]
    assert {attempt for _, attempt in attempts(again)[1:]} == {1}
    await host.kill()
