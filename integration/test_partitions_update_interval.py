"""Clients find partitions that were added on a real Pulsar after `partitions_update_interval`."""

from __future__ import annotations

import asyncio
from typing import Any

import pulsar_encore as encore
from tests.harness.admin import Admin
from tests.harness.pulsar_server import Server

_ALL = set(range(4))


async def test_new_partitions_are_found_after_the_interval(
    pulsar: Server, admin: Admin, topic: str
) -> None:
    """The default interval of 60 s is longer than the timeout of this test."""
    await asyncio.to_thread(admin.create_partitioned_topic, topic, 2)
    async with (
        encore.Client(
            pulsar.service_url, transport="native", partitions_update_interval=1
        ) as client,
        client.subscribe(topic, "s") as consumer,
        client.create_producer(
            topic,
            batching_enabled=False,
            message_routing_mode=encore.PartitionsRoutingMode.RoundRobinDistribution,
        ) as producer,
        client.create_reader(topic, encore.MessageId.earliest) as reader,
        asyncio.timeout(30),
    ):
        await asyncio.to_thread(admin.grow_partitioned_topic, topic, 4)

        async def send() -> None:
            partitions: set[int] = set()
            while partitions != _ALL:
                partitions.add((await producer.send(b"x")).partition())
                await asyncio.sleep(0.02)

        async def read(next_message: Any) -> None:
            partitions: set[int] = set()
            while partitions != _ALL:
                partitions.add((await next_message()).message_id().partition())

        await asyncio.gather(send(), read(consumer.receive), read(reader.read_next))
