"""Leases on a real Pulsar: more than the queue holds, several consumers, hangs, both transports."""

from __future__ import annotations

import asyncio
import random

import pytest

import pulsar_encore as encore
from harness.admin import Admin
from harness.pulsar_server import Server

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


@pytest.mark.parametrize(("transport", "batch"), [("native", 10), ("stock", 1)])
async def test_each_key_is_done_in_order_while_consumers_come_and_go(
    pulsar: Server, admin: Admin, topic: str, transport: str, batch: int
) -> None:
    """20 keys of 50 messages; one in five is nacked or left to its end, the topic is unloaded."""
    wanted = asyncio.Condition()
    keys, count, rng = 20, 50, random.Random(11)
    done: dict[int, list[int]] = {key: [] for key in range(keys)}
    out: set[int] = set()
    again = 0

    def left() -> int:
        return keys * count - sum(map(len, done.values()))

    async def until_left(most: int) -> None:
        async with wanted:
            await wanted.wait_for(lambda: left() <= most)

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
            nonlocal again
            key, number = map(int, lease.message.data().split(b":"))
            assert key not in out, "two of a key are out"
            assert number <= len(done[key]), "it came before what it follows"
            choice = rng.random()
            if choice < 0.05:
                return  # it ends
            out.add(key)
            try:
                async with lease.kept():
                    await asyncio.sleep(rng.uniform(0, 0.02))
                    if choice < 0.2:
                        await lease.nack(rng.choice([0, 0.1, 0.5]))
                    else:
                        await lease.ack()
                        again += number < len(done[key])
                        if number == len(done[key]):
                            done[key].append(number)
                            async with wanted:
                                wanted.notify_all()
            except encore.LeaseLostError:
                pass  # its consumer was closed meanwhile
            finally:
                out.discard(key)

        async def consume(consumer: encore.Consumer) -> None:
            while left():
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
            await until_left(keys * count * 2 // 3)
            # With two, the one that is connected first is given what the other still works on.
            await asyncio.to_thread(admin.unload, topic)
            await until_left(keys * count // 2)
            group.create_task(consume(await subscribe()))
            await until_left(keys * count // 4)
            await first.close()
            group.create_task(consume(await subscribe()))
        assert all(numbers == list(range(count)) for numbers in done.values())
        # Of what was acked in the moment of the unload and the close.
        assert again <= 60, again
