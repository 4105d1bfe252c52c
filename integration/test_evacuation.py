"""Evacuation of a host, on a real Pulsar: its pending nacks are redelivered elsewhere when due."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

import pulsar_encore as encore
from pulsar_encore.evacuation import evacuate, evacuation_plan
from tests.harness.admin import Admin
from tests.harness.pulsar_server import Server

SHARED = encore.ConsumerType.Shared
MESSAGES = 3_000


@pytest.mark.parametrize(("partitions", "batch"), [(0, 7), (3, 1)])
async def test_evacuated_nacks_are_redelivered_to_another_host_when_due(
    pulsar: Server, admin: Admin, topic: str, tmp_path: Path, batch: int, partitions: int
) -> None:
    """A host nacks every third of 3,000 messages with a long delay, with a queue of 500, and is
    evacuated.
    """
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
        nacked: dict[int, float] = {}
        for _ in range(MESSAGES):
            message = await host.receive(timeout=60)
            number = int(message.data())
            if number % 3 == 0:
                nacked[number] = time.time()
                await host.negative_acknowledge(message, delay=15)
            else:
                await host.acknowledge(message)
        await host.close()
        assert sum(each.waiting for each in evacuation_plan(tmp_path)) == MESSAGES // 3

        started = time.perf_counter()
        report = await evacuate(client, tmp_path)
        took = time.perf_counter() - started
        print(f"{report.moved} messages moved in {took:.2f} s")
        assert (report.moved, report.gone, report.refused) == (MESSAGES // 3, 0, 0), report

        await _assert_no_delivery(client, topic)
        consumer = await client.subscribe(
            topic, "s", SHARED, retry_enable=True, receiver_queue_size=500
        )
        received = []
        for _ in range(MESSAGES // 3):
            message = await consumer.receive(timeout=60)
            number = int(message.data())
            assert time.time() - nacked[number] >= 14.9
            assert message.redelivery_count() == 1
            received.append(number)
            await consumer.acknowledge(message)
        assert sorted(received) == list(range(0, MESSAGES, 3))
        with pytest.raises(encore.ReceiveTimeout):
            await consumer.receive(timeout=2)
        await consumer.unsubscribe()


async def _assert_no_delivery(client: encore.Client, topic: str) -> None:
    """Check that the evacuated messages are acked: no consumer of the subscription receives
    them.
    """
    async with await client.subscribe(topic, "s", SHARED) as consumer:
        with pytest.raises(encore.ReceiveTimeout):
            await consumer.receive(timeout=2)


async def _leave_pending_nacks(
    client: encore.Client, topic: str, path: Path, kind: encore.ConsumerType, delay: float = 60
) -> None:
    """Let a host receive ten messages, nack the odd ones, and close."""
    host = await client.subscribe(topic, "s", kind, state=encore.RocksState(path))
    async with await client.create_producer(topic, batching_enabled=False) as producer:
        for each in range(10):
            await producer.send(b"%d" % each)
    for _ in range(10):
        message = await host.receive(timeout=60)
        if int(message.data()) % 2:
            await host.negative_acknowledge(message, delay=delay)
        else:
            await host.acknowledge(message)
    await host.close()


@pytest.mark.parametrize("kind", ["Exclusive", "Failover", "KeyShared"])
async def test_a_subscription_in_use_of_another_type_is_not_evacuated(
    pulsar: Server, topic: str, tmp_path: Path, kind: str
) -> None:
    consumer_type = encore.ConsumerType[kind]
    async with encore.Client(pulsar.service_url, transport="native") as client:
        await _leave_pending_nacks(client, topic, tmp_path, consumer_type)
        user = await client.subscribe(topic, "s", consumer_type)
        report = await evacuate(client, tmp_path)
        assert (report.moved, report.refused) == (0, 5)
        assert all("is in use" in reason for reason in report.reasons)
        await user.close()
        report = await evacuate(client, tmp_path)
        assert (report.moved, report.left) == (5, 0)
        async with await client.subscribe(topic, "s", consumer_type) as consumer:
            with pytest.raises(encore.ReceiveTimeout):
                await consumer.receive(timeout=2)


@pytest.mark.parametrize("transport", ["native", "stock"])
async def test_messages_held_by_another_consumer_are_evacuated(
    pulsar: Server, topic: str, tmp_path: Path, transport: str
) -> None:
    """An ack by a consumer that was not sent the message counts, although another consumer holds
    it.
    """
    async with encore.Client(pulsar.service_url, transport=transport) as client:
        await _leave_pending_nacks(client, topic, tmp_path, SHARED)
        other = await client.subscribe(topic, "s", SHARED)
        held = [await other.receive(timeout=10) for _ in range(5)]
        report = await evacuate(client, tmp_path)
        assert (report.moved, report.refused) == (5, 0), report
        await other.close()
        assert len(held) == 5
        await _assert_no_delivery(client, topic)


async def test_nacks_of_a_deleted_topic_are_refused_or_forgotten_by_option(
    pulsar: Server, admin: Admin, topic: str, tmp_path: Path
) -> None:
    async with encore.Client(pulsar.service_url, transport="native") as client:
        await _leave_pending_nacks(client, topic, tmp_path, SHARED)
        await asyncio.to_thread(admin.delete_topic, topic)
        report = await evacuate(client, tmp_path)
        assert (report.moved, report.gone, report.refused) == (0, 0, 5)
        report = await evacuate(client, tmp_path, forget_missing=True)
        assert (report.moved, report.gone) == (0, 5)
        reason = "the cluster has none of the waiting messages of its topic"
        assert report.missing[0].reason == reason


@pytest.mark.parametrize("batch", [1, 10])
async def test_nacks_of_an_encrypted_topic_are_evacuated_encrypted_only(
    pulsar: Server, topic: str, tmp_path: Path, keys: Path, batch: int
) -> None:
    secret = encore.CryptoKeyReader(str(keys / "public.pem"), str(keys / "private.pem"))
    async with encore.Client(pulsar.service_url, transport="native") as client:
        host = await client.subscribe(
            topic, "s", SHARED, crypto_key_reader=secret, state=encore.RocksState(tmp_path)
        )
        producer = await client.create_producer(
            topic,
            batching_enabled=batch > 1,
            batching_max_messages=max(2, batch),
            encryption_key="its",
            crypto_key_reader=secret,
        )
        await asyncio.gather(*(producer.send(b"secret %d" % each) for each in range(30)))
        for each in range(30):
            message = await host.receive(timeout=10)
            if each % 2:
                await host.negative_acknowledge(message, delay=30)
            else:
                await host.acknowledge(message)
        await host.close()

        report = await evacuate(client, tmp_path)
        assert (report.moved, report.gone, report.refused) == (0, 0, 15), report
        assert "crypto_key_reader" in report.refusals[0].reason
        assert sum(each.waiting for each in evacuation_plan(tmp_path)) == 15

        report = await evacuate(client, tmp_path, crypto_key_reader=secret)
        assert (report.moved, report.gone, report.refused) == (15, 0, 0), report
        await _assert_no_delivery(client, topic)
        reader = await client.create_reader(
            f"{topic}-s-RETRY",
            encore.MessageId.earliest,
            crypto_failure_action=encore.ConsumerCryptoFailureAction.CONSUME,
        )
        for _ in range(15):
            assert b"secret" not in (await reader.read_next(timeout_millis=5000)).data()
        consumer = await client.subscribe(
            topic, "s", SHARED, retry_enable=True, crypto_key_reader=secret
        )
        received = [(await consumer.receive(timeout=60)).data() for _ in range(15)]
        assert len(set(received)) == 15 and all(each.startswith(b"secret ") for each in received)
        await consumer.unsubscribe()
