"""Retiring a host, on a real Pulsar: what waited there comes elsewhere when it is due."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

import pulsar_encore as encore
from harness.admin import Admin
from harness.pulsar_server import Server
from pulsar_encore.evacuation import evacuate, evacuation_plan

SHARED = encore.ConsumerType.Shared
MESSAGES = 3_000


@pytest.mark.parametrize(("partitions", "batch"), [(0, 7), (3, 1)])
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

        await _nothing_comes(client, topic)
        consumer = await client.subscribe(
            topic, "s", SHARED, retry_enable=True, receiver_queue_size=500
        )
        came = []
        for _ in range(MESSAGES // 3):
            message = await consumer.receive(timeout=60)
            number = int(message.data())
            assert time.time() - nacked[number] >= 14.9
            assert message.redelivery_count() == 1
            came.append(number)
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


async def _leave_waiting(
    client: encore.Client, topic: str, path: Path, kind: encore.ConsumerType, delay: float = 60
) -> None:
    """A host is handed ten messages, nacks the odd ones, and ends."""
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
async def test_a_subscription_of_another_type_is_refused_while_in_use(
    pulsar: Server, topic: str, tmp_path: Path, kind: str
) -> None:
    of_kind = encore.ConsumerType[kind]
    async with encore.Client(pulsar.service_url, transport="native") as client:
        await _leave_waiting(client, topic, tmp_path, of_kind)
        user = await client.subscribe(topic, "s", of_kind)
        report = await evacuate(client, tmp_path)
        assert (report.moved, report.refused) == (0, 5)
        assert all("is in use" in reason for reason in report.reasons)
        await user.close()
        report = await evacuate(client, tmp_path)
        assert (report.moved, report.left) == (5, 0)
        async with await client.subscribe(topic, "s", of_kind) as consumer:
            with pytest.raises(encore.ReceiveTimeout):
                await consumer.receive(timeout=2)


@pytest.mark.parametrize("transport", ["native", "stock"])
async def test_beside_a_consumer_that_was_given_what_waits(
    pulsar: Server, topic: str, tmp_path: Path, transport: str
) -> None:
    """Acks by one that was not sent the messages count, though another holds them."""
    async with encore.Client(pulsar.service_url, transport=transport) as client:
        await _leave_waiting(client, topic, tmp_path, SHARED)
        other = await client.subscribe(topic, "s", SHARED)
        held = [await other.receive(timeout=10) for _ in range(5)]
        report = await evacuate(client, tmp_path)
        assert (report.moved, report.refused) == (5, 0), report
        await other.close()
        assert len(held) == 5
        await _nothing_comes(client, topic)


async def test_of_a_topic_that_was_deleted_all_is_let_go_of_and_none_is_made(
    pulsar: Server, admin: Admin, topic: str, tmp_path: Path
) -> None:
    async with encore.Client(pulsar.service_url, transport="native") as client:
        await _leave_waiting(client, topic, tmp_path, SHARED)
        await asyncio.to_thread(admin.delete_topic, topic)
        report = await evacuate(client, tmp_path)
        assert (report.moved, report.gone, report.refused) == (0, 0, 5)
        report = await evacuate(client, tmp_path, forget_missing=True)
        assert (report.moved, report.gone) == (0, 5)
        reason = "the cluster has none of the waiting messages of its topic"
        assert report.missing[0].reason == reason


@pytest.mark.parametrize("batch", [1, 10])
async def test_of_an_encrypted_topic_nothing_is_sent_in_the_clear_and_nothing_is_let_go_of(
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
        await _nothing_comes(client, topic)
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
        came = [(await consumer.receive(timeout=60)).data() for _ in range(15)]
        assert len(set(came)) == 15 and all(each.startswith(b"secret ") for each in came)
        await consumer.unsubscribe()
