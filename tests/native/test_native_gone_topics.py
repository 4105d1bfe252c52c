"""Consumers release the state of deleted topics and bound the number of partitions."""

from __future__ import annotations

import asyncio

import pytest
from native_kit import Collector, Rig, run, subscription

import pulsar_encore as encore
from pulsar_encore.exceptions import LookupError as TopicLookupError
from pulsar_encore.testing import MemoryTransport
from pulsar_encore.transport.native.client_settings import ClientSettings

SPACE = "persistent://public/default"


def delete_topic(transport: MemoryTransport, topic: str) -> None:
    """Delete a topic as an administrator does."""
    transport._service.delete(topic)


def test_a_removed_topic_does_not_count_for_the_end_of_all_topics() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        topic = f"{SPACE}/t"
        transport.catalogue.create_partitioned(topic, 2)
        async with encore.Client("pulsar://x", transport=transport) as client:
            consumer = await client.subscribe("t", "s")
            await asyncio.sleep(1)
            delete_topic(transport, topic)
            await asyncio.sleep(3)
            transport.catalogue.create(topic)
            await asyncio.sleep(20)
            assert not consumer.has_reached_end_of_topic()
            transport.terminate(topic)
            await asyncio.sleep(5)
            assert consumer.has_reached_end_of_topic()
            assert consumer.statistics().ended_topics == (topic,)

    run(main())


def test_an_ended_topic_that_was_removed_does_not_count_as_ended() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        topic = f"{SPACE}/t"
        transport.catalogue.create_partitioned(topic, 2)
        async with encore.Client("pulsar://x", transport=transport) as client:
            consumer = await client.subscribe("t", "s")
            await asyncio.sleep(1)
            transport.terminate(topic)
            await asyncio.sleep(5)
            assert consumer.has_reached_end_of_topic()
            delete_topic(transport, topic)
            await asyncio.sleep(3)
            transport.catalogue.create(topic)
            await asyncio.sleep(20)
            assert not consumer.has_reached_end_of_topic()
            assert consumer.statistics().ended_topics == ()

    run(main())


def test_deleted_topics_of_a_pattern_leave_no_state() -> None:
    async def main() -> None:
        rig = Rig()
        rig.service.catalogue.create(f"{SPACE}/p-keep")
        transport_consumer = await rig.transport.subscribe(
            subscription(topics=(), pattern=f"{SPACE}/p-.*", pattern_auto_discovery_period=1)
        )
        transport_consumer.start(Collector())
        for number in range(20):
            topic = f"{SPACE}/p-{number}"
            if number % 2:
                rig.service.catalogue.create_partitioned(topic, 2)
            else:
                rig.service.catalogue.create(topic)
            await asyncio.sleep(5)
            assert len(transport_consumer.snapshot().present) == 2 + number % 2
            rig.service.delete(topic)
            await asyncio.sleep(15)
        assert transport_consumer.snapshot().present == (f"{SPACE}/p-keep",)
        assert transport_consumer.snapshot().remembered <= 2
        assert transport_consumer.is_connected()

    run(main())


def test_the_partition_limit_covers_all_topics_of_a_pattern_together() -> None:
    async def main() -> None:
        rig = Rig(settings=ClientSettings(max_partitions=4))
        rig.service.catalogue.create_partitioned(f"{SPACE}/p-0", 3)
        transport_consumer = await rig.transport.subscribe(
            subscription(topics=(), pattern=f"{SPACE}/p-.*", pattern_auto_discovery_period=1)
        )
        transport_consumer.start(Collector())
        await asyncio.sleep(5)
        rig.service.catalogue.create_partitioned(f"{SPACE}/p-1", 2)
        await asyncio.sleep(30)
        assert len(transport_consumer.snapshot().present) == 3

    run(main())


def test_the_error_about_too_many_partitions_says_what_to_change() -> None:
    async def main() -> None:
        rig = Rig(settings=ClientSettings(max_partitions=4))
        topics = tuple(f"{SPACE}/t-{number}" for number in range(2))
        for topic in topics:
            rig.service.catalogue.create_partitioned(topic, 3)
        with pytest.raises(TopicLookupError, match=r"6 partitions together.*at most 4.*raise"):
            await rig.transport.subscribe(subscription(topics=topics))

    run(main())
