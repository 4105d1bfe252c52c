"""A state directory that meets a wiped standalone, and a topic that was deleted and made again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import pulsar_encore as encore
from harness.admin import Admin
from harness.pulsar_server import Server, Standalone
from pulsar_encore.evacuation import evacuate
from pulsar_encore.state.rocks import RocksStore

TRANSPORTS = pytest.mark.parametrize("transport", ["native", "stock"])


async def subscribed(
    client: encore.Client, topic: str, path: Path, **options: object
) -> encore.Consumer:
    return await client.subscribe(
        topic,
        "s",
        encore.ConsumerType.Shared,
        initial_position=encore.InitialPosition.Earliest,
        state=encore.RocksState(path, **options),  # type: ignore[arg-type]
    )


async def published(client: encore.Client, topic: str, count: int) -> None:
    producer = await client.create_producer(topic, batching_enabled=False)
    for each in range(count):
        await producer.send(b"%d" % each)
    await producer.close()


async def received(consumer: encore.Consumer, count: int) -> list[encore.Message]:
    return [await consumer.receive(timeout=30) for _ in range(count)]


def turned(path: Path, topic: str) -> None:
    """Give each record another fingerprint: the directory is now one of another cluster.

    The ids of a broker go on as long as its metadata lives. So the records are changed and not the
    messages.
    """
    store = RocksStore(path, wall_now_ms=0)
    records = store.source(topic, "s").records
    for key, record in records.entries_waiting():
        records._write(key, record._replace(fingerprint=record.fingerprint ^ 1 << 40))
    store.close()


@TRANSPORTS
async def test_messages_match_their_records_on_both_transports(
    pulsar: Server, topic: str, tmp_path: Path, transport: str
) -> None:
    """A directory moves from one transport to the other, and to and fro."""
    path = tmp_path / "state"
    other = "stock" if transport == "native" else "native"
    async with encore.Client(pulsar.service_url, transport=transport) as client:
        consumer = await subscribed(client, topic, path)
        for batching in (False, True):
            producer = await client.create_producer(
                topic, batching_enabled=batching, batching_max_messages=10
            )
            await asyncio.gather(*(producer.send(b"x") for _ in range(50)))
        for message in await received(consumer, 100):
            await consumer.negative_acknowledge(message, delay=3600)
        await consumer.close()
    for each in (other, transport):
        async with encore.Client(pulsar.service_url, transport=each) as client:
            consumer = await subscribed(client, topic, path)
            with pytest.raises(encore.ReceiveTimeout):
                await consumer.receive(timeout=3)
            durability = consumer._parts.state_writer
            assert durability is not None and durability._store is not None
            assert durability._store.statistics().mismatched == 0
            assert durability._store.statistics().waiting >= 50
            await consumer.close()


@TRANSPORTS
async def test_the_wrong_cluster_ends_consumers_and_evacuations(
    pulsar: Server, admin: Admin, topic: str, tmp_path: Path, transport: str
) -> None:
    path = tmp_path / "state"
    async with encore.Client(pulsar.service_url, transport=transport) as client:
        consumer = await subscribed(client, topic, path)
        await published(client, topic, 120)
        for message in await received(consumer, 120):
            await consumer.negative_acknowledge(message, delay=3600)
        await consumer.close()
        turned(path, topic)
        with pytest.raises(encore.StateMismatchError):
            await evacuate(client, path)
        stats = await asyncio.to_thread(admin.subscription_stats, topic, "s")
        assert stats["msgBacklog"] == 120
        consumer = await subscribed(client, topic, path)
        with pytest.raises(encore.StateMismatchError):
            await received(consumer, 120)
        await consumer.close()
        consumer = await subscribed(client, topic, path, on_mismatch="fresh")
        assert len(await received(consumer, 120)) == 120
        await consumer.close()


@TRANSPORTS
async def test_a_wiped_standalone(tmp_path: Path, transport: str) -> None:
    """The ids begin again, and nobody's messages inherit anything."""
    path, topic = tmp_path / "state", "persistent://public/default/wiped"
    ids: list[set[tuple[int, int]]] = []
    for life in range(2):
        with Standalone() as broker:
            async with encore.Client(broker.service_url, transport=transport) as client:
                consumer = await subscribed(client, topic, path)
                await published(client, topic, 50)
                messages = await received(consumer, 50)
                assert {each.redelivery_count() for each in messages} == {0}
                found = [each.message_id() for each in messages]
                ids.append({(each.ledger_id(), each.entry_id()) for each in found})
                for message in messages:
                    await consumer.negative_acknowledge(message, delay=3600)
                durability = consumer._parts.state_writer
                assert durability is not None and durability._store is not None
                mismatched = durability._store.statistics().mismatched
                assert mismatched == (50 if life and ids[0] == ids[1] else 0)
                await consumer.close()
    assert ids[0] == ids[1], "the ids of a wiped standalone did not begin again"
