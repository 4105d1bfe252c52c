"""Leases on a real Pulsar: beyond the queue size, several consumers, hangs, both transports."""

from __future__ import annotations

import asyncio
import random

import pytest

import pulsar_encore as encore
from tests.harness.admin import Admin
from tests.harness.pulsar_server import Server

TRANSPORTS = pytest.mark.parametrize("transport", ["native", "stock"])


@pytest.mark.parametrize(
    ("transport", "kind", "batch"),
    [
        ("native", encore.ConsumerType.Shared, 10),
        ("native", encore.ConsumerType.KeyShared, 1),
        ("stock", encore.ConsumerType.Shared, 1),
        ("stock", encore.ConsumerType.KeyShared, 10),
    ],
)
async def test_expired_leases_are_redelivered_and_each_message_is_acked_once(
    pulsar: Server, topic: str, transport: str, kind: encore.ConsumerType, batch: int
) -> None:
    """Three consumers. Of ten leases one hangs until it expires, one is nacked, and one is
    extended.
    """
    count, done, rng = 600, dict[int, int](), random.Random(7)
    attempts: dict[int, int] = {}
    async with encore.Client(pulsar.service_url, transport=transport) as client:
        consumers = [
            await client.subscribe(
                topic,
                "s",
                kind,
                receiver_queue_size=30,
                negative_ack_redelivery_delay_ms=100,
                max_leases=100,
            )
            for _ in range(3)
        ]
        producer = await client.create_producer(
            topic,
            batching_enabled=batch > 1,
            batching_max_messages=max(batch, 2),
            batching_type=encore.BatchingType.KeyBased,
        )
        await asyncio.gather(
            *(producer.send(b"%d" % each, partition_key=f"k{each % 20}") for each in range(count))
        )

        async def work(lease: encore.Lease) -> None:
            number = int(lease.message.data())
            attempts[number] = attempts.get(number, 0) + 1
            action = rng.randrange(10) if attempts[number] == 1 else 9
            if action == 0:
                return  # a hang
            if action == 1:
                await lease.nack(0.2)
                return
            if action == 2:
                async with lease.kept():
                    await asyncio.sleep(1.5)
            await lease.ack()
            done[number] = done.get(number, 0) + 1

        async def consume(consumer: encore.Consumer) -> None:
            while len(done) < count:
                leases = await consumer.pop(20, lease=1, wait=1)
                await asyncio.gather(*map(work, leases))

        async with asyncio.timeout(120):
            await asyncio.gather(*map(consume, consumers))
        assert sorted(done) == list(range(count))
        assert set(done.values()) == {1}
        assert sum(each > 1 for each in attempts.values()) > count / 20
        late = await asyncio.gather(*(consumer.pop(wait=2) for consumer in consumers))
        assert late == [[], [], []]


@TRANSPORTS
async def test_leases_of_a_closed_consumer_go_to_another(
    pulsar: Server, topic: str, transport: str
) -> None:
    async with encore.Client(pulsar.service_url, transport=transport) as client:
        one = await client.subscribe(topic, "s", encore.ConsumerType.Shared)
        producer = await client.create_producer(topic)
        for each in range(10):
            await producer.send(b"%d" % each)
        leases = []
        while len(leases) < 10:
            leases += await one.pop(lease=3_600)
        other = await client.subscribe(topic, "s", encore.ConsumerType.Shared)
        await leases[0].ack()

        async def keep() -> None:
            async with leases[1].kept():
                await asyncio.sleep(3_600)

        keep_task = asyncio.ensure_future(keep())
        await asyncio.sleep(0.1)
        await one.close()
        with pytest.raises(encore.LeaseLostError):
            await keep_task
        redelivered = []
        while len(redelivered) < 9:
            redelivered += await other.pop(wait=20)
        assert {lease.message.data() for lease in redelivered} == {
            b"%d" % each for each in range(1, 10)
        }
        for lease in redelivered:
            await lease.ack()


@pytest.mark.parametrize(("transport", "batch"), [("native", 10), ("stock", 1)])
async def test_each_key_is_processed_in_order_while_consumers_join_and_leave(
    pulsar: Server, admin: Admin, topic: str, transport: str, batch: int
) -> None:
    """20 keys of 50 messages. One in five is nacked or left to expire, and the topic is
    unloaded.
    """
    progress = asyncio.Condition()
    keys, count, rng = 20, 50, random.Random(11)
    done: dict[int, list[int]] = {key: [] for key in range(keys)}
    keys_in_progress: set[int] = set()
    redelivered = 0

    def remaining() -> int:
        return keys * count - sum(map(len, done.values()))

    async def wait_until_remaining(most: int) -> None:
        async with progress:
            await progress.wait_for(lambda: remaining() <= most)

    async with encore.Client(pulsar.service_url, transport=transport) as client:

        async def subscribe() -> encore.Consumer:
            return await client.subscribe(
                topic,
                "s",
                encore.ConsumerType.KeyShared,
                receiver_queue_size=30,
                negative_ack_redelivery_delay_ms=100,
                ordered_leases=True,
            )

        async def work(lease: encore.Lease) -> None:
            nonlocal redelivered
            key, number = map(int, lease.message.data().split(b":"))
            assert key not in keys_in_progress, "two of a key are out"
            assert number <= len(done[key]), "it came before what it follows"
            choice = rng.random()
            if choice < 0.05:
                return  # the lease expires
            keys_in_progress.add(key)
            try:
                async with lease.kept():
                    await asyncio.sleep(rng.uniform(0, 0.02))
                    if choice < 0.2:
                        await lease.nack(rng.choice([0, 0.1, 0.5]))
                    else:
                        await lease.ack()
                        redelivered += number < len(done[key])
                        if number == len(done[key]):
                            done[key].append(number)
                            async with progress:
                                progress.notify_all()
            except encore.LeaseLostError:
                pass  # the consumer was closed meanwhile
            finally:
                keys_in_progress.discard(key)

        async def consume(consumer: encore.Consumer) -> None:
            while remaining():
                try:
                    leases = await consumer.pop(8, lease=2, wait=1, max_per_key=1)
                except encore.ClosedError:
                    return
                await asyncio.gather(*map(work, leases))

        first = await subscribe()
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
        async with asyncio.timeout(150), asyncio.TaskGroup() as group:
            group.create_task(consume(first))
            await wait_until_remaining(keys * count * 2 // 3)
            # With two consumers, the one that reconnects first would receive messages that the
            # other works on.
            await asyncio.to_thread(admin.unload, topic)
            await wait_until_remaining(keys * count // 2)
            group.create_task(consume(await subscribe()))
            await wait_until_remaining(keys * count // 4)
            await first.close()
            group.create_task(consume(await subscribe()))
        assert all(numbers == list(range(count)) for numbers in done.values())
        # Messages whose ack was lost at the unload or the close.
        assert redelivered <= 60, redelivered
