"""Retiring a host, on a real Pulsar: what waited there comes elsewhere when it is due."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

import pulsar_encore as encore
from pulsar_encore.evacuation import evacuate, evacuation_plan

from .admin import Admin
from .pulsar_server import Server

SHARED = encore.ConsumerType.Shared
MESSAGES = 3_000


@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize("partitions", [0, 3])
async def test_what_waits_comes_elsewhere_when_it_is_due_and_counts_on(
    pulsar: Server, admin: Admin, topic: str, tmp_path: Path, batch: int, partitions: int
) -> None:
    """A host nacks every third of 3,000 messages, for long, and is retired; its queue holds 500."""
    if partitions:
        admin.create_partitioned_topic(topic, partitions)
    async with encore.Client(pulsar.service_url, transport="native") as client:
        host = await client.subscribe(
            topic,
            "s",
            SHARED,
            receiver_queue_size=500,
            state=encore.RocksState(tmp_path),
        )
        producer = await client.create_producer(
            topic,
            batching_enabled=batch > 1,
            batching_max_messages=max(2, batch),
            block_if_queue_full=True,
        )
        await asyncio.gather(*(producer.send(b"%d" % each) for each in range(MESSAGES)))
        for _ in range(MESSAGES):
            message = await host.receive(timeout=60)
            if int(message.data()) % 3 == 0:
                await host.negative_acknowledge(message, delay=25)
            else:
                await host.acknowledge(message)
        begun = time.time()
        await host.close()
        assert sum(each.waiting for each in evacuation_plan(tmp_path)) == MESSAGES // 3

        started = time.perf_counter()
        report = await evacuate(client, tmp_path)
        took = time.perf_counter() - started
        print(f"{report.moved} messages moved in {took:.2f} s")
        assert (report.moved, report.gone, report.refused) == (MESSAGES // 3, 0, 0), report

        await _nothing_comes(client, topic)
        consumer = await client.subscribe(
            topic, "s", SHARED, retry_enable=True, receiver_queue_size=500
        )
        came = []
        for _ in range(MESSAGES // 3):
            message = await consumer.receive(timeout=60)
            assert time.time() - begun >= 24.9 - 3  # nacked within the last 3 s before
            assert message.redelivery_count() == 1
            came.append(int(message.data()))
            await consumer.acknowledge(message)
        assert sorted(came) == list(range(0, MESSAGES, 3))
        with pytest.raises(encore.ReceiveTimeout):
            await consumer.receive(timeout=2)
        await consumer.unsubscribe()


async def _nothing_comes(client: encore.Client, topic: str) -> None:
    """What was moved is acked where it was: no consumer of the subscription gets it."""
    async with await client.subscribe(topic, "s", SHARED) as consumer:
        with pytest.raises(encore.ReceiveTimeout):
            await consumer.receive(timeout=2)
