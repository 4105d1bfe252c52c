"""Ordered leases: a failed message is popped again before later messages of its key."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

import pytest
from consumer_kit import (
    REDELIVER,
    TOPIC,
    Subscribe,
    close_without_backlog,
    logged,
    now_s,
    service_of,
    settle,
)
from ordered_kit import key_and_number, put_keyed, subscribe_ordered

from pulsar_encore import (
    Client,
    ConfigurationError,
    Consumer,
    ConsumerKeySharedPolicy,
    ConsumerType,
    DeadLetterPolicy,
    InitialPosition,
    Lease,
    LeaseLostError,
    RocksState,
)
from pulsar_encore.consumer.leases.key_queues import KeyQueues
from pulsar_encore.options import ConsumerOptions
from pulsar_encore.testing import MemoryTransport

DEAD = "persistent://public/default/dead"
LATE_S = 0.15  # a bucket of 64 ms, and the time of the loop
BATCHES = pytest.mark.parametrize("batch", [1, 4])


async def drain(consumer: Consumer, wait: float = 1) -> list[tuple[int, int]]:
    """Pop and ack until nothing comes."""
    got = []
    while leases := await consumer.pop(wait=wait, max_per_key=1):
        for lease in leases:
            got.append(key_and_number(lease))
            await lease.ack()
    return got


@BATCHES
@pytest.mark.parametrize("seed", range(5))
async def test_each_key_is_processed_in_order_whatever_fails(
    transport: MemoryTransport, subscribe: Subscribe, batch: int, seed: int
) -> None:
    """Acks, nacks, leases that end and connections that break, beside each other."""
    count, keys, rng = 40, 5, Random(seed)
    put_keyed(transport, count, keys, batch)
    consumer = await subscribe_ordered(
        subscribe, receiver_queue_size=7, max_leases=rng.choice([3, 20, 500])
    )
    done: dict[int, list[int]] = defaultdict(list)
    lost = 0
    while sum(map(len, done.values())) < count * keys:
        for lease in await consumer.pop(rng.randint(1, 8), lease=0.5, wait=100, max_per_key=1):
            key, number = key_and_number(lease)
            assert number == len(done[key]), f"seed {seed}"
            choice = rng.random()
            if choice < 0.1:
                await asyncio.sleep(1)  # it ends, and those popped with it
            try:
                if choice < 0.3:
                    await lease.nack(rng.choice([0, 0.3, 2]))
                else:
                    await lease.ack()
                    done[key].append(number)
            except LeaseLostError:
                lost += 1
        if rng.random() < 0.05:
            transport.disconnect()
            await asyncio.sleep(rng.choice([0, 0.2]))
            transport.reconnect()
    assert lost > 0
    assert await consumer.pop(wait=5, max_per_key=1) == []
    assert consumer.statistics().unacked == 0
    await close_without_backlog(transport, consumer)


@BATCHES
async def test_one_message_of_a_key_is_leased_at_a_time_and_other_keys_go_on(
    transport: MemoryTransport, subscribe: Subscribe, batch: int
) -> None:
    put_keyed(transport, 4, 3, batch)
    consumer = await subscribe_ordered(subscribe)
    first = await consumer.pop(100, lease=1000, wait=1, max_per_key=1)
    assert [key_and_number(lease) for lease in first] == [(0, 0), (1, 0), (2, 0)]
    assert await consumer.pop(wait=1, max_per_key=1) == []
    await first[1].ack()
    (second,) = await consumer.pop(100, lease=1000, wait=0, max_per_key=1)
    assert key_and_number(second) == (1, 1)


@BATCHES
async def test_a_nacked_message_holds_back_its_key_and_no_other_key(
    transport: MemoryTransport, subscribe: Subscribe, batch: int
) -> None:
    put_keyed(transport, 4, 2, batch)
    consumer = await subscribe_ordered(subscribe)
    bad, good = await consumer.pop(2, lease=1000, wait=1, max_per_key=1)
    began = now_s()
    await bad.nack(delay=60)
    await good.ack()
    assert await drain(consumer, wait=5) == [(1, 1), (1, 2), (1, 3)]
    (again,) = await consumer.pop(wait=1000, max_per_key=1)
    assert (key_and_number(again), again.attempt) == ((0, 0), 2)
    assert 60 <= now_s() - began < 60 + LATE_S
    await again.ack()
    assert await drain(consumer) == [(0, 1), (0, 2), (0, 3)]
    assert transport.recorded(REDELIVER) == [], "the broker would send it to anybody, at any time"


async def test_an_expired_lease_holds_back_its_key_and_counts_an_attempt(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_keyed(transport, 3, 1, batch=3)
    consumer = await subscribe_ordered(subscribe)
    for attempt in (1, 2, 3):
        (lease,) = await consumer.pop(wait=10, lease=2, max_per_key=1)
        assert (key_and_number(lease), lease.attempt) == ((0, 0), attempt)
    await lease.ack()
    assert await drain(consumer) == [(0, 1), (0, 2)]


@BATCHES
async def test_a_key_goes_on_once_its_failing_message_is_dead_lettered(
    transport: MemoryTransport, subscribe: Subscribe, batch: int
) -> None:
    put_keyed(transport, 2, 1, batch)
    client = Client("pulsar://nowhere:6650", transport=transport)
    consumer = await client.subscribe(
        TOPIC,
        "s",
        ConsumerType.KeyShared,
        initial_position=InitialPosition.Earliest,
        dead_letter_policy=DeadLetterPolicy(2, dead_letter_topic=DEAD),
        ordered_leases=True,
    )
    for attempt in (1, 2, 3):
        (lease,) = await consumer.pop(wait=10, max_per_key=1)
        assert (key_and_number(lease), lease.attempt) == ((0, 0), attempt)
        await lease.nack(0)
    assert await drain(consumer) == [(0, 1)]
    reader = await client.subscribe(DEAD, "d", initial_position=InitialPosition.Earliest)
    assert (await reader.receive(timeout=1)).data() == b"0:0"
    await client.close()


@BATCHES
async def test_a_lost_connection_delivers_no_message_early_twice_or_out_of_order(
    transport: MemoryTransport, subscribe: Subscribe, batch: int
) -> None:
    put_keyed(transport, 20, 3, batch)
    consumer = await subscribe_ordered(subscribe, receiver_queue_size=10)
    waiting, held, done = await consumer.pop(3, lease=10_000, wait=1, max_per_key=1)
    began = now_s()
    await waiting.nack(delay=30)
    await done.ack()
    for _ in range(3):
        transport.disconnect()
        await asyncio.sleep(1)
        transport.reconnect()
        await settle()
    assert await drain(consumer) == [(2, number) for number in range(1, 20)]
    await held.ack()
    assert await drain(consumer) == [(1, number) for number in range(1, 20)]
    (again,) = await consumer.pop(wait=100, max_per_key=1)
    assert key_and_number(again) == (0, 0) and again.attempt == 2 and now_s() - began >= 30
    await again.ack()
    assert await drain(consumer) == [(0, number) for number in range(1, 20)]


async def test_a_nacked_message_is_redelivered_in_time_though_another_topic_was_unloaded(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    other = f"{TOPIC}2"
    transport.put(TOPIC, b"0:0", key="k")
    transport.put(other, b"1:0", key="k")
    consumer = await subscribe_ordered(subscribe, TOPIC, other)
    leases: list[Lease] = []
    while len(leases) < 2:
        leases += await consumer.pop(lease=10_000, wait=5, max_per_key=1)
    (waiting,) = [lease for lease in leases if key_and_number(lease) == (1, 0)]
    await waiting.nack(5)
    began = now_s()
    popping = asyncio.create_task(consumer.pop(wait=3600, max_per_key=1))
    await settle()
    service_of(transport).unload(transport.state(TOPIC))
    (again,) = await popping
    assert key_and_number(again) == (1, 0) and 5 <= now_s() - began < 5 + LATE_S


async def test_redeliver_unacknowledged_messages_redelivers_each_key_in_order(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_keyed(transport, 5, 2)
    consumer = await subscribe_ordered(subscribe)
    one, two = await consumer.pop(2, lease=1000, wait=1, max_per_key=1)
    await one.nack(delay=3600)
    consumer.redeliver_unacknowledged_messages()
    with pytest.raises(LeaseLostError):
        await two.ack()
    got = await drain(consumer)
    for key in (0, 1):
        assert [number for each, number in got if each == key] == list(range(5))


@BATCHES
async def test_redelivered_messages_are_delivered_before_later_messages_of_their_key(
    transport: MemoryTransport, subscribe: Subscribe, batch: int
) -> None:
    put_keyed(transport, 40, 2, batch)
    consumer = await subscribe_ordered(subscribe, receiver_queue_size=7)
    done: dict[int, list[int]] = defaultdict(list)
    attempts = 0
    began = now_s()
    while sum(map(len, done.values())) < 80:
        for lease in await consumer.pop(wait=10, max_per_key=1):
            key, number = key_and_number(lease)
            assert number == len(done[key])
            attempts = max(attempts, lease.attempt)
            if number % 3 == 0 and lease.attempt == 1:
                await lease.nack(3600)
                consumer.redeliver_unacknowledged_messages()
                break
            if number % 3 == 1 and lease.attempt == 1:
                consumer.redeliver_unacknowledged_messages()
                consumer.redeliver_unacknowledged_messages()
                break
            await lease.ack()
            done[key].append(number)
    assert attempts > 1 and now_s() - began < 2


async def test_a_seek_discards_a_message_that_waits_for_its_due_time(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_keyed(transport, 3, 1)
    consumer = await subscribe_ordered(subscribe)
    (lease,) = await consumer.pop(wait=1, max_per_key=1)
    await lease.nack(delay=3600)
    await consumer.seek(lease.message.message_id())
    got = await drain(consumer)
    assert [number for _, number in got][-2:] == [1, 2]


@pytest.mark.parametrize("by_id", [False, True])
async def test_a_message_acked_while_it_waits_does_not_hold_back_its_key(
    transport: MemoryTransport, subscribe: Subscribe, by_id: bool
) -> None:
    put_keyed(transport, 2, 1)
    consumer = await subscribe_ordered(subscribe)
    (lease,) = await consumer.pop(wait=1, max_per_key=1)
    await lease.nack(delay=3600)
    await consumer.acknowledge(lease.message.message_id() if by_id else lease.message)
    began = now_s()
    assert await drain(consumer, wait=5) == [(0, 1)]
    assert now_s() - began < 10


async def test_messages_without_a_key_wait_for_no_other_message(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    for number in range(10):
        transport.put(TOPIC, b"0:%d" % number)
    consumer = await subscribe_ordered(subscribe)
    leases = await consumer.pop(wait=1, max_per_key=1)
    assert [key_and_number(lease)[1] for lease in leases] == list(range(10))
    await leases[0].nack(1)
    for lease in leases[1:]:
        await lease.ack()
    assert await drain(consumer, wait=5) == [(0, 0)]


async def test_one_warning_is_logged_when_max_leases_messages_are_held_back(
    transport: MemoryTransport, subscribe: Subscribe, caplog: pytest.LogCaptureFixture
) -> None:
    put_keyed(transport, 50, 1)
    put_keyed(transport, 1, 2)
    consumer = await subscribe_ordered(subscribe, receiver_queue_size=5, max_leases=10)
    (bad,) = await consumer.pop(wait=1, max_per_key=1)
    await bad.nack(delay=60)
    with caplog.at_level(logging.WARNING):
        assert await consumer.pop(wait=5, max_per_key=1) == []
        assert await consumer.pop(wait=5, max_per_key=1) == []
    assert len(logged(caplog)) == 1 and "10 messages are held back" in caplog.text
    assert consumer.statistics().queued < 10 + 3 * 5
    got = await drain(consumer, wait=100)
    assert [number for key, number in got if key == 0] == [*range(50), 0]
    assert (1, 0) in got


@BATCHES
async def test_with_a_state_due_times_attempts_and_order_survive_a_restart(
    transport: MemoryTransport, tmp_path: Path, batch: int
) -> None:
    put_keyed(transport, 4, 2, batch)

    async def start(client: Client) -> Consumer:
        return await client.subscribe(
            TOPIC,
            "s",
            ConsumerType.KeyShared,
            initial_position=InitialPosition.Earliest,
            ordered_leases=True,
            state=RocksState(tmp_path, count_attempts="before"),
        )

    async with Client("pulsar://nowhere:6650", transport=transport) as client:
        bad, _held = await (await start(client)).pop(2, wait=1, max_per_key=1)
        await bad.nack(delay=100)
        began = now_s()
    async with Client("pulsar://nowhere:6650", transport=transport) as client:
        consumer = await start(client)
        (held,) = await consumer.pop(wait=10, max_per_key=1)
        assert (key_and_number(held), held.attempt) == ((1, 0), 2)
        await held.ack()
        assert await drain(consumer) == [(1, 1), (1, 2), (1, 3)]
        (again,) = await consumer.pop(wait=1000, max_per_key=1)
        assert (key_and_number(again), again.attempt) == ((0, 0), 2)
        assert now_s() - began >= 99.9
        await again.ack()
        assert await drain(consumer) == [(0, 1), (0, 2), (0, 3)]


async def test_each_key_stays_in_order_when_a_consumer_joins(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_keyed(transport, 10, 8)
    one = await subscribe_ordered(subscribe, receiver_queue_size=20)
    done: dict[int, list[int]] = defaultdict(list)
    first = await one.pop(100, lease=1000, wait=1, max_per_key=1)
    for lease in first[::2]:
        await lease.nack(5)
    other = await subscribe_ordered(subscribe, receiver_queue_size=20)
    for lease in first[1::2]:
        done[key_and_number(lease)[0]].append(key_and_number(lease)[1])
        await lease.ack()
    while sum(map(len, done.values())) < 80:
        for consumer in (one, other):
            for lease in await consumer.pop(100, wait=0.5, max_per_key=1):
                done[key_and_number(lease)[0]].append(key_and_number(lease)[1])
                await lease.ack()
    assert all(numbers == list(range(10)) for numbers in done.values()), done


async def test_a_hot_key_takes_about_three_steps_per_message(
    transport: MemoryTransport, subscribe: Subscribe, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 0
    judge = KeyQueues._advance_to_leasable

    def counting(self: KeyQueues, *arguments: Any) -> bool:
        nonlocal steps
        steps += 1
        return judge(self, *arguments)

    monkeypatch.setattr(KeyQueues, "_advance_to_leasable", counting)
    put_keyed(transport, 1_500, 1, batch=50)
    consumer = await subscribe_ordered(subscribe)
    assert len(await drain(consumer)) == 1_500
    assert steps <= 3 * 1_500 + 100


async def test_receive_is_refused_with_ordered_leases(subscribe: Subscribe) -> None:
    consumer = await subscribe_ordered(subscribe)
    for call in (consumer.receive(timeout=0), consumer.batch_receive()):
        with pytest.raises(ConfigurationError, match="ordered_leases"):
            await call


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"consumer_type": ConsumerType.Shared}, "KeyShared"),
        ({"consumer_type": ConsumerType.Exclusive}, "KeyShared"),
        ({"retry_enable": True}, "retry_enable"),
        ({"message_listener": print}, "message_listener"),
        (
            {"key_shared_policy": ConsumerKeySharedPolicy(allow_out_of_order_delivery=True)},
            "allow_out_of_order",
        ),
        ({"ordered_leases": 1}, "ordered_leases"),
    ],
)
def test_options_that_would_break_the_order_are_refused_with_ordered_leases(
    options: dict[str, Any], word: str
) -> None:
    asked = {"consumer_type": ConsumerType.KeyShared, "ordered_leases": True, **options}
    with pytest.raises(ConfigurationError, match=word):
        ConsumerOptions(topics=(TOPIC,), pattern=None, subscription_name="s", **asked)
