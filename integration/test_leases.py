"""Leases on a real Pulsar: more than the queue holds, several consumers, hangs, both transports."""

from __future__ import annotations

import asyncio
import random

import pytest

import pulsar_encore as encore

from .pulsar_server import Server

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
async def test_what_hangs_comes_again_and_each_is_done_once(
    pulsar: Server, topic: str, transport: str, kind: encore.ConsumerType, batch: int
) -> None:
    """Three consumers; of ten leases one hangs until it expires, one is nacked, one is kept."""
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
            way = rng.randrange(10) if attempts[number] == 1 else 9
            if way == 0:
                return  # it hangs
            if way == 1:
                await lease.nack(0.2)
                return
            if way == 2:
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
async def test_leases_of_a_consumer_that_goes_come_to_another(
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

        keeping = asyncio.ensure_future(keep())
        await asyncio.sleep(0.1)
        await one.close()
        with pytest.raises(encore.LeaseLostError):
            await keeping
        again = []
        while len(again) < 9:
            again += await other.pop(wait=20)
        assert {lease.message.data() for lease in again} == {b"%d" % each for each in range(1, 10)}
        for lease in again:
            await lease.ack()
