"""`Consumer.lag` with the web service of a real broker."""

from __future__ import annotations

import asyncio
import re
import uuid
from datetime import timedelta

import pytest

import pulsar_encore as encore
from pulsar_encore.admin import WebService
from pulsar_encore.options import ClientOptions
from tests.harness.admin import Admin
from tests.harness.contract.contract_kit import bodies, publish, subscribe, take
from tests.harness.pulsar_server import Server

TRANSPORTS = pytest.mark.parametrize("transport", ["native", "stock"])


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/lag-{uuid.uuid4().hex[:8]}"


def client_of(pulsar: Server, transport: str) -> encore.Client:
    return encore.Client(pulsar.service_url, transport=transport, admin_url=pulsar.admin_url)


async def until(consumer: encore.Consumer, messages: int) -> encore.Lag:
    async with asyncio.timeout(10):
        while (lag := await consumer.lag()).messages != messages:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    return lag


@TRANSPORTS
async def test_the_broker_counts_messages_of_batches(
    pulsar: Server, topic: str, transport: str
) -> None:
    async with client_of(pulsar, transport) as client:
        consumer = await subscribe(client, topic)
        assert (await consumer.lag()).messages == 0
        await publish(client, topic, bodies(30), batch=10)
        lag = await until(consumer, 30)
        assert lag.exact and lag.seconds is not None and 0 < lag.seconds < 60
        messages = await take(consumer, 30)
        for message in messages[10:20]:
            await consumer.acknowledge(message)
        lag = await until(consumer, 20)
        assert lag.exact
        for message in (*messages[:10], *messages[20:]):
            await consumer.acknowledge(message)
        lag = await until(consumer, 0)
        assert lag.seconds == 0


async def test_the_cursor_tells_which_entries_are_acked(pulsar: Server, topic: str) -> None:
    async with client_of(pulsar, "native") as client:
        consumer = await subscribe(client, topic, ack_receipt_enabled=True)
        ids = await publish(client, topic, bodies(8))
        messages = await take(consumer, 8)
        acked = (0, 1, 3, 4, 6)
        await asyncio.gather(*(consumer.acknowledge(messages[each]) for each in acked))
        web = WebService(ClientOptions(service_url=pulsar.service_url), pulsar.admin_url)
        stats = await web.internal_stats(topic)
        web.close()
        cursor = stats.cursors["s"]
        told = [each for each in range(8) if cursor.is_acked(ids[each].ledger_id(), each)]
        assert told == list(acked)
        assert stats.last == (ids[7].ledger_id(), 7)


@TRANSPORTS
async def test_delayed_messages_and_nacked_ones_count(
    pulsar: Server, topic: str, transport: str
) -> None:
    async with client_of(pulsar, transport) as client:
        consumer = await subscribe(client, topic)
        await publish(client, topic, bodies(3))
        await publish(client, topic, bodies(2), deliver_after=timedelta(minutes=1))
        for message in await take(consumer, 3):
            await consumer.negative_acknowledge(message)
        assert (await until(consumer, 5)).exact


@TRANSPORTS
async def test_partitions_and_a_retry_letter_topic(
    pulsar: Server, admin: Admin, topic: str, transport: str
) -> None:
    await asyncio.to_thread(admin.create_partitioned_topic, topic, 3)
    async with client_of(pulsar, transport) as client:
        policy = encore.DeadLetterPolicy(max_redeliver_count=3)
        consumer = await subscribe(client, topic, retry_enable=True, dead_letter_policy=policy)
        await publish(client, topic, bodies(30))
        (message,) = await take(consumer, 1)
        await consumer.reconsume_later(message, 60_000)
        lag = await until(consumer, 30)
        assert len(lag.topics) == 2
        assert [each.messages for each in lag.topics if each.topic == topic] == [29]
        assert lag.exact


@TRANSPORTS
async def test_a_non_persistent_topic_has_no_lag(
    pulsar: Server, topic: str, transport: str
) -> None:
    async with client_of(pulsar, transport) as client:
        consumer = await subscribe(client, f"non-{topic}")
        await publish(client, f"non-{topic}", bodies(3))
        lag = await consumer.lag()
        assert lag.messages == 0 and lag.exact


@TRANSPORTS
async def test_topics_of_a_pattern(pulsar: Server, topic: str, transport: str) -> None:
    """The stock transport knows a topic when it has had a message of it, and says so."""
    async with client_of(pulsar, transport) as client:
        await publish(client, f"{topic}-a", bodies(3))
        await publish(client, f"{topic}-b", [])
        consumer = await subscribe(client, re.compile(f"{topic}-.*"))
        await take(consumer, 3)
        lag = await until(consumer, 3)
        assert len(lag.topics) == (1 if transport == "stock" else 2)
        assert lag.exact is lag.complete is (transport == "native")


async def test_a_web_service_that_is_away_is_an_error(pulsar: Server, topic: str) -> None:
    async with encore.Client(pulsar.service_url, admin_url="http://127.0.0.1:9") as client:
        consumer = await subscribe(client, topic)
        with pytest.raises(encore.ConnectError):
            await consumer.lag()
