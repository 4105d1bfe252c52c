"""Avro values decode with the version they were written with, or not at all; the loop never waits.

The two records differ in the order of their fields only: with the wrong one the bytes decode, and
the values are swapped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore.devbroker import BrokerThread, Fault, FaultPlan
from pulsar_encore.schema import AvroSchema, Integer, Record, StringSchema
from pulsar_encore.transport.versioned import writer_schemas as writers

EARLIEST = encore.MessageId.earliest

# The engine's log is global: the first logger made decides, and tests provoke errors.
_LOGGERS = {"stock": encore.ConsoleLogger(encore.LoggerLevel.Error), "native": None}


@pytest.fixture(params=_LOGGERS)
def make_client(
    broker: BrokerThread, request: pytest.FixtureRequest
) -> Callable[..., encore.Client]:
    """Of each transport in turn."""
    name = request.param

    def make(**options: Any) -> encore.Client:
        return encore.Client(broker.url, transport=name, logger=_LOGGERS[name], **options)

    return make


class Box(Record):  # type: ignore[misc]
    width = Integer()
    height = Integer()


class Turned(Record):  # type: ignore[misc]
    _avro_namespace = None
    height = Integer()
    width = Integer()


def writer() -> Any:
    return AvroSchema(Box)


def reader() -> Any:
    return AvroSchema(None, {**AvroSchema(Turned)._schema, "name": "Box"})


def answers(kind: str, **how: Any) -> FaultPlan:
    return FaultPlan([Fault(kind=kind, command="GET_SCHEMA_RESPONSE", times=1000, **how)])  # type: ignore[arg-type]


async def publish(client: encore.Client, topic: str, widths: range, schema: Any = None) -> None:
    schema = schema or writer()
    async with await client.create_producer(topic, schema=schema) as producer:
        for width in widths:
            sizes = {"width": width, "height": -width}
            await producer.send(sizes if schema._record_cls is None else Box(**sizes))


def subscribe(client: encore.Client, topic: str, **options: Any) -> Any:
    options = {"schema": reader(), "initial_position": encore.InitialPosition.Earliest} | options
    return client.subscribe(topic, "s", **options)


def sizes(message: encore.Message) -> tuple[int, int]:
    value = message.value()
    return value["width"], value["height"]


@pytest.fixture
async def longest_turn() -> AsyncIterator[Callable[[], float]]:
    """The longest that the loop has not run, in s."""
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.005)
            now = time.monotonic()
            longest, last = max(longest, now - last), now

    task = asyncio.create_task(watch())
    yield lambda: longest
    task.cancel()


@pytest.mark.parametrize("kind", ["consumer", "reader"])
async def test_a_slow_schema_lookup_delays_the_message_and_not_the_loop(
    client: encore.Client,
    topic: str,
    broker: BrokerThread,
    longest_turn: Callable[[], float],
    kind: str,
) -> None:
    await publish(client, topic, range(1, 4))
    broker.forget_commands()
    broker.faults = answers("delay", delay_ms=600)
    if kind == "consumer":
        receiver = await subscribe(client, topic)
        take = receiver.receive
    else:
        receiver = await client.create_reader(topic, EARLIEST, schema=reader())
        take = receiver.read_next
    async with receiver, asyncio.timeout(5):
        assert [sizes(await take()) for _ in range(3)] == [(1, -1), (2, -2), (3, -3)]
    assert longest_turn() < 0.3
    assert len(broker.recorded("GET_SCHEMA", "in")) == 1


async def test_messages_of_several_schema_versions_keep_their_order_and_each_is_fetched_once(
    client: encore.Client, topic: str, broker: BrokerThread
) -> None:
    await publish(client, topic, range(1, 3))
    await publish(client, topic, range(3, 5), reader())
    await publish(client, topic, range(5, 7))
    broker.forget_commands()
    broker.faults = answers("delay", delay_ms=30)
    async with await subscribe(client, topic) as consumer, asyncio.timeout(5):
        got = [await consumer.receive() for _ in range(6)]
        assert [sizes(each) for each in got] == [(n, -n) for n in range(1, 7)]
        assert [each.int_schema_version() for each in got] == [0, 0, 1, 1, 0, 0]
    async with await client.create_reader(topic, EARLIEST, schema=reader()) as again:
        assert [sizes(await again.read_next(3000)) for _ in range(6)] == [
            (n, -n) for n in range(1, 7)
        ]
    assert len(broker.recorded("GET_SCHEMA", "in")) == 2


async def test_partitions_share_their_schema_versions(
    client: encore.Client, topic: str, broker: BrokerThread
) -> None:
    broker.create_partitioned_topic(topic, 3)
    await publish(client, topic, range(1, 7))
    broker.forget_commands()
    async with await subscribe(client, topic) as consumer, asyncio.timeout(5):
        got = {sizes(await consumer.receive()) for _ in range(6)}
    assert got == {(n, -n) for n in range(1, 7)}
    assert len(broker.recorded("GET_SCHEMA", "in")) == 1


@pytest.mark.parametrize("how", ["no answer", "an error"])
async def test_a_schema_version_that_cannot_be_fetched_fails_only_the_value(
    make_client: Callable[..., encore.Client],
    topic: str,
    broker: BrokerThread,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    monkeypatch.setattr(writers, "_RETRY_DELAY_S", 0.05)
    if how == "no answer":
        monkeypatch.setattr(writers, "WAIT_S", 0.1)
    async with make_client(operation_timeout_seconds=1) as client:
        await publish(client, topic, range(1, 3))
        broker.faults = answers("drop")
        async with (
            await subscribe(client, topic, negative_ack_redelivery_delay_ms=100) as consumer,
            asyncio.timeout(8),
        ):
            first, second = [await consumer.receive() for _ in range(2)]
            for message in (first, second):
                with pytest.raises(encore.SchemaVersionError, match="nack the message") as raised:
                    message.value()
                assert raised.value.retryable and raised.value.result == "Timeout"
                assert message.data()
            broker.faults = None
            await asyncio.sleep(1.2)  # the look-up without an answer is over
            await consumer.negative_acknowledge(first)
            again = [await consumer.receive() for _ in range(2)]
            assert [sizes(each) for each in again] == [(1, -1), (2, -2)]
            # The held message still has the same version.
            assert sizes(first) == (1, -1)


async def test_a_rewind_discards_messages_that_wait_for_their_schema(
    client: encore.Client, topic: str, broker: BrokerThread
) -> None:
    await publish(client, topic, range(1, 9))
    broker.faults = answers("delay", delay_ms=150)
    async with (
        await subscribe(client, topic, receiver_queue_size=4) as consumer,
        asyncio.timeout(8),
    ):
        await asyncio.sleep(0.05)
        consumer.redeliver_unacknowledged_messages()
        await asyncio.sleep(0.05)
        await consumer.seek(EARLIEST)
        got = [sizes(await consumer.receive()) for _ in range(8)]
        assert got == [(n, -n) for n in range(1, 9)]


async def test_redelivery_while_waiting_for_a_schema_counts_no_attempt(
    client: encore.Client, topic: str, broker: BrokerThread
) -> None:
    await publish(client, topic, range(1, 2))
    await publish(client, topic, range(2, 4), reader())
    broker.faults = answers("delay", delay_ms=700)
    async with (
        await subscribe(client, topic, consumer_type=encore.ConsumerType.Shared) as consumer,
        asyncio.timeout(8),
    ):
        assert sizes(await consumer.receive()) == (1, -1)
        for _ in range(3):
            await asyncio.sleep(0.1)  # the others wait for their version
            consumer.redeliver_unacknowledged_messages()
        got = [await consumer.receive() for _ in range(3)]
        assert sorted(sizes(each) for each in got) == [(n, -n) for n in range(1, 4)]
        counts = {sizes(each)[0]: each.redelivery_count() for each in got}
        assert (counts[2], counts[3]) == (0, 0)


async def test_a_read_given_up_during_a_schema_lookup_loses_no_message(
    client: encore.Client, topic: str, broker: BrokerThread
) -> None:
    await publish(client, topic, range(1, 4))
    broker.faults = answers("delay", delay_ms=300)
    async with (
        await client.create_reader(topic, EARLIEST, schema=reader()) as receiver,
        asyncio.timeout(5),
    ):
        with pytest.raises(encore.ReceiveTimeout):
            await receiver.read_next(50)
        cancelled = asyncio.create_task(receiver.read_next())
        await asyncio.sleep(0.05)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        assert await receiver.has_message_available()
        assert [sizes(await receiver.read_next()) for _ in range(3)] == [(1, -1), (2, -2), (3, -3)]
        assert not await receiver.has_message_available()


@pytest.mark.parametrize("kind", ["consumer", "reader"])
async def test_messages_that_wait_for_their_schema_survive_a_lost_connection_once(
    client: encore.Client, topic: str, broker: BrokerThread, kind: str
) -> None:
    """A consumer's comes again, a reader's does not."""
    await publish(client, topic, range(1, 4))
    broker.faults = answers("delay", delay_ms=400)
    if kind == "consumer":
        receiver = await subscribe(client, topic)
        take = receiver.receive
    else:
        receiver = await client.create_reader(topic, EARLIEST, schema=reader())
        take = receiver.read_next
    async with receiver, asyncio.timeout(8):
        await asyncio.sleep(0.1)
        await asyncio.to_thread(broker.unload, topic)
        assert [sizes(await take()) for _ in range(3)] == [(1, -1), (2, -2), (3, -3)]
        await publish(client, topic, range(4, 5))
        assert sizes(await take()) == (4, -4)


async def test_close_during_a_schema_lookup_ends_at_once(
    make_client: Callable[..., encore.Client], topic: str, broker: BrokerThread
) -> None:
    client = make_client()
    await publish(client, topic, range(1, 4))
    broker.faults = answers("drop")
    consumer = await subscribe(client, topic)
    receiver = await client.create_reader(topic, EARLIEST, schema=reader())
    waiting = [asyncio.create_task(consumer.receive()), asyncio.create_task(receiver.read_next())]
    await asyncio.sleep(0.1)
    async with asyncio.timeout(3):
        await client.close()
        for ended in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(ended, encore.ClosedError)


async def test_bytes_without_a_schema_version_are_decoded_by_the_readers_schema(
    client: encore.Client, topic: str, broker: BrokerThread
) -> None:
    async with await client.create_producer(topic) as producer:
        await producer.send(reader().encode({"width": 3, "height": 4}))
    broker.forget_commands()
    async with await client.create_reader(topic, EARLIEST, schema=reader()) as receiver:
        message = await receiver.read_next(3000)
    assert message.int_schema_version() < 0
    assert sizes(message) == (3, 4)
    assert not broker.recorded("GET_SCHEMA", "in")


async def test_a_schema_without_versions_is_not_looked_up(
    client: encore.Client, topic: str, broker: BrokerThread
) -> None:
    async with await client.create_producer(topic, schema=StringSchema()) as producer:
        await producer.send("x")
    broker.forget_commands()
    async with await subscribe(client, topic, schema=StringSchema()) as consumer:
        assert (await consumer.receive(timeout=3)).value() == "x"
    assert not broker.recorded("GET_SCHEMA", "in")
