"""Lists of ordered leases, pops of a partition, and backoff after leases, on a real Pulsar."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import pytest

import pulsar_encore as encore
from tests.harness.admin import Admin
from tests.harness.pulsar_server import Server

TRANSPORTS = pytest.mark.parametrize("transport", ["native", "stock"])


@pytest.mark.parametrize(("transport", "batch"), [("native", 10), ("stock", 1)])
async def test_lists_of_leases_keep_the_order_of_each_key(
    pulsar: Server, admin: Admin, topic: str, transport: str, batch: int
) -> None:
    """8 keys of 60 messages at two consumers, with nacks and expired leases."""
    keys, count, rng = 8, 60, random.Random(5)
    done: dict[int, list[int]] = {key: [] for key in range(keys)}
    longest = lost = 0

    def remaining() -> int:
        return keys * count - sum(map(len, done.values()))

    async with encore.Client(pulsar.service_url, transport=transport) as client:
        consumers = [
            await client.subscribe(
                topic,
                "s",
                encore.ConsumerType.KeyShared,
                receiver_queue_size=50,
                ordered_leases=True,
                negative_ack_redelivery_backoff=[0.05, 0.2],
            )
            for _ in range(2)
        ]
        producer = await client.create_producer(
            topic,
            batching_enabled=batch > 1,
            batching_max_messages=max(batch, 2),
            batching_type=encore.BatchingType.KeyBased,
        )
        await asyncio.gather(
            *(
                producer.send(b"%d:%d" % (key, number), partition_key=f"k{key}")
                for number in range(count)
                for key in range(keys)
            )
        )

        async def consume(consumer: encore.Consumer) -> None:
            nonlocal longest, lost
            while remaining():
                leases = await consumer.pop(12, lease=2, wait=1)
                by_key: dict[int, list[int]] = {}
                for lease in leases:
                    key, number = map(int, lease.message.data().split(b":"))
                    by_key.setdefault(key, []).append(number)
                for key, numbers in by_key.items():
                    start = len(done[key])
                    assert numbers == list(range(start, start + len(numbers)))
                    longest = max(longest, len(numbers))
                for lease in leases:
                    key, number = map(int, lease.message.data().split(b":"))
                    choice = rng.random()
                    try:
                        if choice < 0.1:
                            await lease.nack()
                        elif choice < 0.12:
                            # the lease expires, and so do the later leases
                            await asyncio.sleep(2.2)
                            await lease.ack()
                        else:
                            await lease.ack()
                            done[key].append(number)
                    except encore.LeaseLostError:
                        lost += 1

        async with asyncio.timeout(150):
            await asyncio.gather(*map(consume, consumers))
        assert all(numbers == list(range(count)) for numbers in done.values())
        assert longest > 1 and lost > 0
        assert await consumers[0].pop(wait=1) == []


@TRANSPORTS
async def test_a_pop_of_a_topic_returns_only_its_messages(
    pulsar: Server, admin: Admin, topic: str, transport: str
) -> None:
    await asyncio.to_thread(admin.create_partitioned_topic, topic, 3)
    async with encore.Client(pulsar.service_url, transport=transport) as client:
        consumer = await client.subscribe(
            topic, "s", encore.ConsumerType.Shared, receiver_queue_size=100
        )
        names = [f"{topic}-partition-{each}" for each in range(3)]
        pop_task = asyncio.ensure_future(consumer.pop(wait=60, topic=names[2]))
        for name in names:
            producer = await client.create_producer(name)
            await asyncio.gather(*(producer.send(b"%s" % name[-1:].encode()) for _ in range(90)))
        received = dict.fromkeys(names, 0)
        for lease in await pop_task:
            assert lease.message.data() == b"2"
            await lease.ack()
            received[names[2]] += 1

        async def work(name: str) -> None:
            while received[name] < 90:
                for lease in await consumer.pop(20, wait=5, topic=name):
                    assert lease.message.data() == name[-1:].encode()
                    received[name] += 1
                    await lease.ack()

        async with asyncio.timeout(60):
            await asyncio.gather(*map(work, names))
        assert set(received.values()) == {90}
        assert await consumer.pop(wait=1) == []
        with pytest.raises(encore.ConfigurationError, match="does not read"):
            await consumer.pop(topic=f"{topic}-other")


@TRANSPORTS
async def test_an_unpopped_backlog_does_not_block_another_topic(
    pulsar: Server, topic: str, transport: str
) -> None:
    other = f"{topic}-other"
    async with encore.Client(pulsar.service_url, transport=transport) as client:
        consumer = await client.subscribe(
            [topic, other], "s", encore.ConsumerType.Shared, receiver_queue_size=100
        )
        for name, count in ((topic, 2_000), (other, 50)):
            producer = await client.create_producer(name, max_pending_messages=2_000)
            await asyncio.gather(*(producer.send(name[-5:].encode()) for _ in range(count)))
        received = 0
        async with asyncio.timeout(60):
            while received < 50:
                for lease in await consumer.pop(10, wait=10, topic=other):
                    assert lease.message.data() == b"other"
                    await lease.ack()
                    received += 1


@TRANSPORTS
@pytest.mark.parametrize("ordered", [False, True])
async def test_an_expired_lease_waits_for_its_backoff(
    pulsar: Server, topic: str, transport: str, ordered: bool, tmp_path: Path
) -> None:
    async with encore.Client(pulsar.service_url, transport=transport) as client:
        consumer = await client.subscribe(
            topic,
            "s",
            encore.ConsumerType.KeyShared,
            ordered_leases=ordered,
            negative_ack_redelivery_backoff=[1, 3],
            state=encore.RocksState(tmp_path),
        )
        producer = await client.create_producer(topic, batching_enabled=False)
        await producer.send(b"0", partition_key="k")
        for attempt, delay in ((1, 0.0), (2, 1.5), (3, 3.5)):
            began = time.monotonic()
            (lease,) = await consumer.pop(lease=0.5, wait=30)
            assert lease.attempt == attempt
            assert time.monotonic() - began >= delay - 0.05
        await lease.ack()
        store = consumer.statistics().store
        assert store is not None and store.writes > 0 and store.failures == 0


@TRANSPORTS
async def test_close_counts_an_attempt_for_each_held_message(
    pulsar: Server, topic: str, transport: str, tmp_path: Path
) -> None:
    state = encore.RocksState(tmp_path, count_attempts="lazy")
    for attempt in range(3):
        async with encore.Client(pulsar.service_url, transport=transport) as client:
            consumer = await client.subscribe(topic, "s", encore.ConsumerType.Shared, state=state)
            if not attempt:
                producer = await client.create_producer(topic)
                await asyncio.gather(*(producer.send(b"%d" % each) for each in range(20)))
            received = [await consumer.receive(timeout=30) for _ in range(20)]
            assert {message.redelivery_count() for message in received} == {attempt}


@TRANSPORTS
async def test_copies_at_several_consumers_have_different_attempt_numbers(
    pulsar: Server, topic: str, transport: str, tmp_path: Path
) -> None:
    """Siblings of a batch fail, so that copies of the batch go to several consumers of this
    process.
    """
    state = encore.RocksState(tmp_path, count_attempts="before")
    async with encore.Client(pulsar.service_url, transport=transport) as client:
        consumers = [
            await client.subscribe(
                topic,
                "s",
                encore.ConsumerType.Shared,
                receiver_queue_size=10,
                batch_index_ack_enabled=True,
                state=state,
            )
            for _ in range(3)
        ]
        producer = await client.create_producer(
            topic, batching_max_messages=6, batching_max_publish_delay_ms=1_000
        )
        await asyncio.gather(*(producer.send(b"%d" % each) for each in range(6)))
        counts: list[int] = []
        quiet = 0
        while quiet < 3:
            for consumer in consumers:
                try:
                    message = await consumer.receive(timeout=0.3)
                except encore.ReceiveTimeout:
                    continue
                quiet = 0
                if message.data() == b"5":
                    counts.append(message.redelivery_count())
                    await consumer.negative_acknowledge(message, 3_600)
                elif message.data() in (b"0", b"2") or message.redelivery_count() > 2:
                    await consumer.acknowledge(message)
                else:
                    await consumer.negative_acknowledge(message, 0)
            quiet += 1
        assert counts and len(set(counts)) == len(counts), counts
