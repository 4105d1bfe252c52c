"""The stock client takes ids that the stock transport returned."""

from __future__ import annotations

import pulsar
import pulsar.asyncio
import pytest

import pulsar_encore as encore
from pulsar_encore.devbroker import BrokerThread
from pulsar_encore.transport.stock.cpp_ids import from_native

QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


@pytest.fixture
async def sent(client: encore.Client, topic: str) -> list[encore.MessageId]:
    """The ids of three messages, each an entry of its own."""
    producer = await client.create_producer(topic, batching_enabled=False)
    return [await producer.send(b"%d" % number) for number in range(3)]


async def test_pulsar_asyncio_seeks_acks_and_reads_by_our_message_ids(
    broker: BrokerThread, topic: str, sent: list[encore.MessageId]
) -> None:
    stock = pulsar.asyncio.Client(broker.url, logger=QUIET)
    try:
        consumer = await stock.subscribe(topic, "s")
        await consumer.seek(sent[0])
        message = await consumer.receive()
        assert message.data() == b"1"
        assert sent[1] == message.message_id() and message.message_id() in sent
        for each in sent[:2]:
            await consumer.acknowledge(each)
        await consumer.close()
        again = await stock.subscribe(topic, "s")
        assert (await again.receive()).data() == b"2"
        await again.acknowledge_cumulative(sent[2])
        reader = await stock.create_reader(topic, sent[1], start_message_id_inclusive=True)
        assert (await reader.read_next()).data() == b"1"
        await reader.seek(sent[0])
        assert (await reader.read_next()).data() == b"0"
    finally:
        await stock.close()


def test_the_blocking_pulsar_client_seeks_by_our_message_ids(
    broker: BrokerThread, topic: str
) -> None:
    stock = pulsar.Client(broker.url, logger=QUIET)
    try:
        producer = stock.create_producer(topic)
        theirs = [producer.send(b"%d" % number) for number in range(3)]
        ours = [from_native(each) for each in theirs]
        consumer = stock.subscribe(topic, "s")
        consumer.seek(ours[1])
        assert consumer.receive(5000).data() == b"2"
        reader = stock.create_reader(topic, ours[0])
        assert reader.read_next(5000).data() == b"1"
        assert [each == other for each, other in zip(ours, theirs, strict=True)] == [True] * 3
    finally:
        stock.close()
