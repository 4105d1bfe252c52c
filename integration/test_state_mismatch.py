"""A state directory with a wiped standalone broker, and with a recreated topic."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import pulsar_encore as encore
from pulsar_encore.evacuation import evacuate
from pulsar_encore.state.rocks import RocksStore
from tests.harness.admin import Admin
from tests.harness.pulsar_server import Server, Standalone

TRANSPORTS = pytest.mark.parametrize("transport", ["native", "stock"])


async def open_consumer(
    client: encore.Client, topic: str, path: Path, **options: object
) -> encore.Consumer:
    return await client.subscribe(
        topic,
        "s",
        encore.ConsumerType.Shared,
        initial_position=encore.InitialPosition.Earliest,
        state=encore.RocksState(path, **options),  # type: ignore[arg-type]
    )


async def publish_messages(client: encore.Client, topic: str, count: int) -> None:
    producer = await client.create_producer(topic, batching_enabled=False)
    for each in range(count):
        await producer.send(b"%d" % each)
    await producer.close()


async def receive_messages(consumer: encore.Consumer, count: int) -> list[encore.Message]:
    return [await consumer.receive(timeout=30) for _ in range(count)]


def change_fingerprints(path: Path, topic: str) -> None:
    """Change the fingerprint of each record, as in the directory of another cluster.

    A broker never repeats ids while its metadata exists, so the records are changed and not the
    messages.
    """
    store = RocksStore(path, wall_now_ms=0)
    records = store.topic_store(topic, "s").records
    for key, record in records.entries_waiting():
        records._write(key, record._replace(fingerprint=record.fingerprint ^ 1 << 40))
    store.close()


@TRANSPORTS
async def test_messages_match_their_records_on_both_transports(
    pulsar: Server, topic: str, tmp_path: Path, transport: str
) -> None:
    """A directory moves from one transport to the other and back."""
    path = tmp_path / "state"
    other = "stock" if transport == "native" else "native"
    async with encore.Client(pulsar.service_url, transport=transport) as client:
        consumer = await open_consumer(client, topic, path)
        for batching in (False, True):
            producer = await client.create_producer(
                topic, batching_enabled=batching, batching_max_messages=10
            )
            await asyncio.gather(*(producer.send(b"x") for _ in range(50)))
        for message in await receive_messages(consumer, 100):
            await consumer.negative_acknowledge(message, delay=3600)
        await consumer.close()
    for each in (other, transport):
        async with encore.Client(pulsar.service_url, transport=each) as client:
            consumer = await open_consumer(client, topic, path)
            with pytest.raises(encore.ReceiveTimeout):
                await consumer.receive(timeout=3)
            state_writer = consumer._parts.state_writer
            assert state_writer is not None and state_writer._store is not None
            assert state_writer._store.statistics().mismatched == 0
            assert state_writer._store.statistics().waiting >= 50
            await consumer.close()


@TRANSPORTS
async def test_a_state_of_another_cluster_fails_consumers_and_evacuations(
    pulsar: Server, admin: Admin, topic: str, tmp_path: Path, transport: str
) -> None:
    path = tmp_path / "state"
    async with encore.Client(pulsar.service_url, transport=transport) as client:
        consumer = await open_consumer(client, topic, path)
        await publish_messages(client, topic, 120)
        for message in await receive_messages(consumer, 120):
            await consumer.negative_acknowledge(message, delay=3600)
        await consumer.close()
        change_fingerprints(path, topic)
        with pytest.raises(encore.StateMismatchError):
            await evacuate(client, path)
        stats = await asyncio.to_thread(admin.subscription_stats, topic, "s")
        assert stats["msgBacklog"] == 120
        consumer = await open_consumer(client, topic, path)
        with pytest.raises(encore.StateMismatchError):
            await receive_messages(consumer, 120)
        await consumer.close()
        consumer = await open_consumer(client, topic, path, on_mismatch="fresh")
        assert len(await receive_messages(consumer, 120)) == 120
        await consumer.close()


@TRANSPORTS
async def test_messages_of_a_wiped_standalone_inherit_no_state(
    tmp_path: Path, transport: str
) -> None:
    """The ids start again, and the new messages must not inherit records of the old ones."""
    path, topic = tmp_path / "state", "persistent://public/default/wiped"
    ids: list[set[tuple[int, int]]] = []
    for run_number in range(2):
        with Standalone() as broker:
            async with encore.Client(broker.service_url, transport=transport) as client:
                consumer = await open_consumer(client, topic, path)
                await publish_messages(client, topic, 50)
                messages = await receive_messages(consumer, 50)
                assert {each.redelivery_count() for each in messages} == {0}
                found = [each.message_id() for each in messages]
                ids.append({(each.ledger_id(), each.entry_id()) for each in found})
                for message in messages:
                    await consumer.negative_acknowledge(message, delay=3600)
                state_writer = consumer._parts.state_writer
                assert state_writer is not None and state_writer._store is not None
                mismatched = state_writer._store.statistics().mismatched
                assert mismatched == (50 if run_number and ids[0] == ids[1] else 0)
                await consumer.close()
    assert ids[0] == ids[1], "the ids of a wiped standalone did not begin again"
