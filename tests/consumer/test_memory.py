"""The memory transport in users' tests: event loops, order, served and recorded commands."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from consumer_kit import TOPIC, close_without_backlog, now_s, settle

import pulsar_encore as encore
from pulsar_encore import schema
from pulsar_encore.options import ProducerOptions
from pulsar_encore.testing import BrokerSettings, Deadlock, Fault, FaultPlan, MemoryTransport, run
from pulsar_encore.transport.interface import Transport

VOLATILE = "non-persistent://public/default/t"


def client_of(transport: MemoryTransport) -> encore.Client:
    return encore.Client("pulsar://nowhere:6650", transport=transport)


async def read(transport: MemoryTransport, count: int, name: str = "s") -> list[bytes]:
    async with (
        client_of(transport) as client,
        client.subscribe(
            TOPIC,
            name,
            encore.ConsumerType.Shared,
            initial_position=encore.InitialPosition.Earliest,
        ) as consumer,
    ):
        got = []
        for _ in range(count):
            message = await consumer.receive(timeout=100)
            await consumer.acknowledge(message)
            got.append(message.data())
        return got


# Loops


def test_a_memory_transport_keeps_its_messages_across_several_loops() -> None:
    transport = MemoryTransport()
    transport.catalogue.create_partitioned("parts", 2)
    transport.put(TOPIC, b"0")
    assert run(read(transport, 1)) == [b"0"]
    transport.put(TOPIC, b"1", b"2")
    assert transport.backlog(TOPIC, "s") == 1
    assert run(read(transport, 2)) == [b"1", b"2"]
    assert asyncio.run(read(transport, 3, "other")) == [b"0", b"1", b"2"]


def test_the_topics_that_match_a_pattern_are_listed() -> None:
    transport: Transport = MemoryTransport()  # a type checker compares both

    async def main() -> list[str]:
        async with encore.Client("memory://", transport=transport) as client:
            for topic in ("orders-1", "orders-2", "bills"):
                await client.subscribe(topic, "s")
            return await transport.topics_matching("persistent://public/default/orders-.*")

    prefix = "persistent://public/default/orders"
    assert run(main()) == [f"{prefix}-1", f"{prefix}-2"]


def test_a_delayed_message_of_a_loop_that_ended_is_delivered_on_the_next() -> None:
    transport = MemoryTransport()

    async def leave() -> None:
        client = client_of(transport)
        consumer = await client.subscribe(TOPIC, "s", encore.ConsumerType.Shared)
        transport.put(TOPIC, b"late", deliver_at_ms=transport.wall_ms() + 5000)
        transport.put(TOPIC, b"early")
        assert (await consumer.receive(timeout=1)).data() == b"early"
        client.shutdown()

    run(leave())
    assert sorted(run(read(transport, 2))) == [b"early", b"late"]


async def test_deliver_after_counts_from_the_virtual_time_of_the_send(
    transport: MemoryTransport,
) -> None:
    async with (
        client_of(transport) as client,
        client.create_producer(TOPIC) as producer,
        client.subscribe(TOPIC, "s", encore.ConsumerType.Shared) as consumer,
    ):
        await asyncio.sleep(60)
        sent_s = now_s()
        await producer.send(b"later", deliver_after=timedelta(seconds=30))
        message = await consumer.receive(timeout=100)
        assert now_s() - sent_s == pytest.approx(30, abs=2)
        await consumer.acknowledge(message)


@pytest.mark.parametrize("partitions", [0, 2])
def test_a_wait_without_end_raises_deadlock_with_a_connected_client(partitions: int) -> None:
    """With everything connected: nothing of ours sets a timer that goes round."""

    async def main() -> None:
        transport = MemoryTransport()
        if partitions:
            transport.catalogue.create_partitioned(TOPIC, partitions)
        async with client_of(transport) as client:
            producer = await client.create_producer(TOPIC)
            consumer = await client.subscribe(TOPIC, "s")
            await client.subscribe("persistent://public/default/x.*", "s", is_pattern_topic=True)
            await producer.send(b"x")
            await consumer.acknowledge(await consumer.receive())
            await consumer.receive()

    with pytest.raises(Deadlock, match="timeout"):
        run(main(), deadlock_timeout_s=0.01)


# The same each time


async def _busy() -> list[tuple[Any, ...]]:
    transport = MemoryTransport(
        faults=FaultPlan([Fault(kind="close_before", command="ACK", nth=2)])
    )
    transport.catalogue.create_partitioned(TOPIC, 3)
    async with client_of(transport) as client:
        consumers = [
            await client.subscribe(
                TOPIC,
                "s",
                encore.ConsumerType.KeyShared,
                negative_ack_redelivery_delay_ms=100,
            )
            for _ in range(3)
        ]
        producer = await client.create_producer(TOPIC)
        for number in range(40):
            producer.send_async(b"%d" % number, _ignored, partition_key=f"k{number}")
        for consumer in consumers:
            while True:
                try:
                    message = await consumer.receive(timeout=1)
                except encore.ReceiveTimeout:
                    break
                if message.redelivery_count() == 0 and message.data().endswith(b"3"):
                    await consumer.negative_acknowledge(message)
                else:
                    await consumer.acknowledge(message)
    return [
        (command.name, command.at_ms, command.topic, str(command.details))
        for command in transport.commands
        if command.name not in ("MESSAGE", "SEND")  # in which there is the time of day
    ]


def _ignored(*_: object) -> None:
    pass


def test_two_runs_record_the_same_commands_in_the_same_order() -> None:
    first = run(_busy())
    assert len(first) > 30
    assert run(_busy()) == first


# Connections


async def test_a_closed_connection_is_open_again_after_a_tenth_of_a_second(
    transport: MemoryTransport,
) -> None:
    transport.put(TOPIC, b"x")
    transport.faults = FaultPlan([Fault(kind="close_after", command="ACK")])
    async with client_of(transport) as client:
        consumer = await client.subscribe(TOPIC, "s", ack_group_time_ms=0)
        transport.put(TOPIC, b"x")
        began = now_s()
        await consumer.acknowledge(await consumer.receive())
        await settle()
        assert not consumer.is_connected()
        assert transport.connected
        transport.put(TOPIC, b"y")
        await consumer.receive()
        assert now_s() - began == pytest.approx(0.1, abs=0.011)


async def test_a_reconnect_takes_effect_at_once_however_long_the_outage_was(
    transport: MemoryTransport,
) -> None:
    async with client_of(transport) as client:
        consumer = await client.subscribe(TOPIC, "s")
        producer = await client.create_producer(TOPIC)
        for away_s in (0, 3600):
            transport.disconnect()
            transport.disconnect()
            sending = asyncio.ensure_future(producer.send(b"x"))
            await asyncio.sleep(away_s and 20)
            if away_s:
                await asyncio.sleep(0)
            transport.reconnect()
            began = now_s()
            await sending
            await consumer.acknowledge(await consumer.receive())
            assert now_s() - began <= 0.02


async def test_closing_one_of_two_clients_shuts_down_their_shared_transport(
    transport: MemoryTransport,
) -> None:
    async with client_of(transport) as one:
        producer = await one.create_producer(TOPIC)
        async with client_of(transport) as other:
            consumer = await other.subscribe(TOPIC, "s")
            await producer.send(b"x")
            assert (await consumer.receive(timeout=1)).data() == b"x"
            waiting = asyncio.ensure_future(consumer.receive())
            await settle()
            await one.close()  # all links are one transport's
            with pytest.raises(encore.ClosedError, match="shut down"):
                await waiting
    assert transport.consumers == []
    assert await read(transport, 1) == [b"x"]


# Served commands


async def test_messages_with_schemas_chunks_and_compression_can_be_read(
    transport: MemoryTransport,
) -> None:
    """Schemas with versions, batches, chunks, compression: all of it is the protocol's."""

    class Order(schema.Record):  # type: ignore[misc]
        name = schema.String()

    async with client_of(transport) as client:
        orders = await client.create_producer("orders", schema=schema.JsonSchema(Order))
        consumer = await client.subscribe("orders", "s", schema=schema.JsonSchema(Order))
        await orders.send(Order(name="one"))
        message = await consumer.receive(timeout=1)
        assert (message.value().name, message.int_schema_version()) == ("one", 0)
        long = await client.create_producer(
            TOPIC,
            batching_enabled=False,
            chunking_enabled=True,
            compression_type=encore.CompressionType.ZLib,
        )
        data = bytes(range(256)) * 30_000
        reader = await client.create_reader(TOPIC, encore.MessageId.latest)
        await long.send(data)
        assert (await reader.read_next(1000)).data() == data


async def test_a_producer_creates_its_initial_subscription(transport: MemoryTransport) -> None:
    options = ProducerOptions(topic=TOPIC, initial_subscription_name="first")
    transport_producer = await transport.create_producer(options)
    await transport_producer.close()
    transport.put(TOPIC, b"x")
    assert transport.backlog(TOPIC, "first") == 1


async def test_a_reader_gets_new_messages_of_a_non_persistent_topic(
    transport: MemoryTransport,
) -> None:
    async with (
        client_of(transport) as client,
        client.create_reader(VOLATILE, encore.MessageId.latest) as reader,
    ):
        producer = await client.create_producer(VOLATILE)
        for number in range(3):
            sent = await producer.send(b"%d" % number)
            assert (sent.ledger_id(), sent.entry_id()) == (0, 0)
            assert (await reader.read_next(1000)).data() == b"%d" % number


# Recorded commands


async def test_recorded_commands_have_their_topic_subscription_and_details(
    transport: MemoryTransport,
) -> None:
    async with client_of(transport) as client:
        producer = await client.create_producer(TOPIC, producer_name="p")
        consumer = await client.subscribe(TOPIC, "s", ack_group_time_ms=0)
        await producer.send(b"x", properties={"a": "b"})
        message = await consumer.receive(timeout=1)
        await consumer.acknowledge(message)
        await settle()
        names = [command.name for command in transport.commands]
        # The second FLOW follows the first message, which shows the message size.
        expected = ["PRODUCER", "SUBSCRIBE", "FLOW", "SEND", "MESSAGE", "FLOW", "ACK"]
        assert names == expected
        of = {command.name: command for command in transport.commands}
        assert {command.topic for command in of.values()} == {TOPIC}
        subscriptions = [command.subscription for command in transport.commands]
        assert subscriptions == ["", "s", "s", "", "s", "s", "s"]
        entry_place = (message.message_id().ledger_id(), message.message_id().entry_id())
        assert of["PRODUCER"].details.producer_name == "p"
        assert of["SUBSCRIBE"].details.subscription == "s"
        assert sum(each.details for each in transport.recorded("FLOW")) == 1000
        assert of["SEND"].details.metadata.producer_name == "p"
        id_of = of["MESSAGE"].details.message_id
        assert (id_of.ledgerId, id_of.entryId) == entry_place
        assert (of["ACK"].details.topic_number, of["ACK"].details.entries) == (0, [entry_place])
        assert [each.topic for each in transport.recorded("SEND_RECEIPT")] == [TOPIC]
        assert len(transport.recorded("CONNECT")) == 1


async def test_no_commands_are_recorded_with_recording_off() -> None:
    transport = MemoryTransport(BrokerSettings(record=False, token="secret"))
    transport.put(TOPIC, b"x")
    assert await read(transport, 1) == [b"x"]
    assert transport.commands == []


@pytest.mark.parametrize("chunks", [1, 2, 5])
async def test_put_chunked_publishes_one_message_in_several_entries(
    transport: MemoryTransport,
    subscribe: Callable[..., Awaitable[encore.Consumer]],
    chunks: int,
) -> None:
    stored = transport.put_chunked(TOPIC, b"abc", chunks)
    consumer = await subscribe()
    message = await consumer.receive(timeout=1)
    assert (message.data(), message.message_id()) == (b"abc", stored)
    assert transport.backlog(TOPIC, "s") == chunks
    await consumer.acknowledge(message)
    await close_without_backlog(transport, consumer)


async def test_put_accepts_keys_of_bytes_and_null_values(
    transport: MemoryTransport, subscribe: Callable[..., Awaitable[encore.Consumer]]
) -> None:
    transport.put(TOPIC, b"", None, key=b"\xff")
    transport.put(TOPIC, None, key="k", event_ms=5, properties={"a": "b"})
    consumer = await subscribe()
    one, two, three = [await consumer.receive(timeout=1) for _ in range(3)]
    assert [each.has_null_value() for each in (one, two, three)] == [False, True, True]
    assert [each.partition_key() for each in (one, three)] == ["/w==", "k"]
    assert (three.event_timestamp(), three.properties()) == (5, {"a": "b"})
