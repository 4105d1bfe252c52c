"""Publishing: arguments named before anything is sent, order kept, nothing left hanging."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pulsar
import pytest

import pulsar_encore as encore
from pulsar_encore.devbroker import BrokerThread, Fault, FaultPlan
from pulsar_encore.options import ProducerOptions
from pulsar_encore.schema import (
    AvroSchema,
    BytesSchema,
    Integer,
    JsonSchema,
    Record,
    String,
    StringSchema,
)
from pulsar_encore.transport.stock.producer_config import producer_configuration

EARLIEST = encore.MessageId.earliest


class Order(Record):  # type: ignore[misc]
    name = String()
    count = Integer()


async def read_all(client: encore.Client, topic: str, count: int, **options: Any) -> list[Any]:
    async with await client.create_reader(topic, EARLIEST, **options) as reader:
        return [await reader.read_next(3000) for _ in range(count)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("content", "text"),
        ("content", 5),
        ("properties", {"a": 1}),
        ("properties", "a=1"),
        ("partition_key", 3),
        ("ordering_key", bytearray(b"key")),
        ("sequence_id", -1),
        ("sequence_id", "1"),
        ("replication_clusters", "west"),
        ("replication_clusters", [1]),
        ("disable_replication", "no"),
        ("event_timestamp", 1.5),
        ("event_timestamp", 2**63),
        ("deliver_at", -5),
        ("deliver_after", 3),
        ("deliver_after", timedelta(seconds=-1)),
    ],
)
async def test_the_error_names_a_wrong_argument_and_no_message_is_sent(
    client: encore.Client, topic: str, name: str, value: Any
) -> None:
    async with await client.create_producer(topic) as producer:
        with pytest.raises(encore.ConfigurationError, match=name):
            await producer.send(**{"content": b"x", name: value})
        assert producer.last_sequence_id() == -1


@pytest.mark.parametrize("name", ["partition_key", "ordering_key"])
async def test_the_error_names_a_key_of_bytes(client: encore.Client, topic: str, name: str) -> None:
    async with await client.create_producer(topic) as producer:
        with pytest.raises(encore.NotSupportedError, match=f"{name} is bytes"):
            await producer.send(b"x", **{name: b"key"})
        await producer.send(b"x", **{name: "key"})
        (got,) = await read_all(client, topic, 1)
        if name == "ordering_key":
            assert got.ordering_key_bytes() == b"key"
        else:
            with pytest.raises(encore.UnreadableError, match="bytes"):
                got.partition_key_bytes()


async def test_deliver_at_and_deliver_after_exclude_each_other(
    client: encore.Client, topic: str
) -> None:
    async with await client.create_producer(topic) as producer:
        with pytest.raises(encore.ConfigurationError, match="not both"):
            await producer.send(b"x", deliver_at=1, deliver_after=timedelta(seconds=1))


async def test_all_arguments_of_send_arrive_at_a_reader(client: encore.Client, topic: str) -> None:
    async with await client.create_producer(topic, "namely", properties={"p": "1"}) as producer:
        await producer.send(
            b"x",
            properties={"a": "b"},
            partition_key="pk",
            ordering_key="ok",
            sequence_id=41,
            disable_replication=False,
            event_timestamp=1234,
        )
        await producer.send(None, partition_key="pk")
        await producer.flush()
        assert producer.producer_name() == "namely"
        assert producer.topic() == f"persistent://public/default/{topic}"
        assert producer.is_connected()
        assert producer.last_sequence_id() == 0  # its own counter, after the 41 that was given
    assert not producer.is_connected()
    first, tombstone = await read_all(client, topic, 2)
    assert (first.data(), first.properties()) == (b"x", {"a": "b"})
    assert (first.partition_key(), first.ordering_key()) == ("pk", "ok")
    assert (first.event_timestamp(), first.producer_name()) == (1234, "namely")
    assert not first.has_null_value() and tombstone.has_null_value()


async def test_messages_with_a_delivery_time_are_sent_and_read_in_order(
    client: encore.Client, topic: str, broker: BrokerThread
) -> None:
    async with await client.create_producer(topic) as producer:
        broker.forget_commands()
        await producer.send(b"later", deliver_after=timedelta(milliseconds=1))
        await producer.send(b"then", deliver_at=5)
        assert len(broker.recorded("SEND", "in")) == 2
    assert [each.data() for each in await read_all(client, topic, 2)] == [b"later", b"then"]


@pytest.mark.parametrize(
    ("schema", "content"),
    [
        (None, b"\x00raw"),
        (BytesSchema(), b"\x00raw"),
        (StringSchema(), "grüße"),
        (JsonSchema(Order), Order(name="a", count=3)),
        (AvroSchema(Order), Order(name="b", count=4)),
    ],
)
async def test_a_value_of_each_schema_makes_the_round_trip(
    client: encore.Client, topic: str, schema: Any, content: Any
) -> None:
    async with await client.create_producer(topic, schema=schema) as producer:
        await producer.send(content)
    (message,) = await read_all(client, topic, 1, schema=schema)
    got = message.value()
    if isinstance(content, Order):
        assert (got.name, got.count) == (content.name, content.count)
    else:
        assert got == content
    async with await client.subscribe(
        topic, "s", schema=schema, initial_position=encore.InitialPosition.Earliest
    ) as consumer:
        received = (await consumer.receive()).value()
        assert getattr(received, "name", received) == getattr(content, "name", content)


@pytest.mark.parametrize("content", [5, b"bytes", {"name": "a"}])
async def test_content_that_does_not_fit_the_schema_raises_content_error(
    client: encore.Client, topic: str, content: Any
) -> None:
    async with await client.create_producer(topic, schema=JsonSchema(Order)) as producer:
        with pytest.raises(encore.ContentError, match="does not fit") as raised:
            await producer.send(content)
        assert isinstance(raised.value, TypeError)


async def test_sends_keep_their_order(client: encore.Client, topic: str) -> None:
    async with await client.create_producer(topic) as producer:
        tasks = [asyncio.create_task(producer.send(b"%d" % each)) for each in range(500)]
        ids = await asyncio.gather(*tasks)
    assert ids == sorted(ids)
    assert len(set(ids)) == 500


async def test_a_send_to_a_full_queue_raises_an_error_that_names_block_if_queue_full(
    client: encore.Client, topic: str
) -> None:
    async with await client.create_producer(topic, max_pending_messages=5) as producer:
        sends = [asyncio.create_task(producer.send(b"x")) for _ in range(20)]
        results = await asyncio.gather(*sends, return_exceptions=True)
        refused = [each for each in results if isinstance(each, encore.TransportError)]
        assert refused and "block_if_queue_full" in str(refused[0])
        assert all(each.retryable for each in refused)


async def test_with_block_if_queue_full_sends_wait_without_blocking_the_loop(
    client: encore.Client, topic: str, broker: BrokerThread
) -> None:
    broker.faults = FaultPlan([Fault(kind="delay", command="SEND", delay_ms=40)])
    async with await client.create_producer(
        topic, max_pending_messages=5, block_if_queue_full=True, batching_max_publish_delay_ms=20
    ) as producer:
        sends = [asyncio.create_task(producer.send(b"%d" % each)) for each in range(23)]
        turns = 0
        while not sends[0].done():
            await asyncio.sleep(0.001)
            turns += 1
        assert turns > 5  # the loop ran while the queue was full
        sends[20].cancel()
        await producer.flush()
        results = await asyncio.gather(*sends, return_exceptions=True)
    assert isinstance(results.pop(20), asyncio.CancelledError)
    expected = [b"%d" % each for each in range(23) if each != 20]
    assert [each.data() for each in await read_all(client, topic, 22)] == expected
    assert all(isinstance(each, encore.MessageId) for each in results)


CHUNKED = 12 * 1024 * 1024  # three chunks


@pytest.mark.parametrize("limit", [1, 2, 5, 7])
async def test_with_block_if_queue_full_chunked_sends_wait_too(
    client: encore.Client, topic: str, limit: int
) -> None:
    async with await client.create_producer(
        topic,
        max_pending_messages=limit,
        block_if_queue_full=True,
        batching_enabled=False,
        chunking_enabled=True,
    ) as producer:
        contents = [bytes([each]) * (CHUNKED if each % 2 else 10) for each in range(6)]
        ids = await asyncio.gather(*(producer.send(each) for each in contents))
        assert ids == sorted(ids)
    assert [each.data() for each in await read_all(client, topic, 6)] == contents


async def test_a_refused_chunked_send_takes_no_place_in_the_queue(
    client: encore.Client, topic: str
) -> None:
    async with await client.create_producer(
        topic, max_pending_messages=3, batching_enabled=False, chunking_enabled=True
    ) as producer:
        for _ in range(3):
            sends = (producer.send(bytes(CHUNKED)) for _ in range(4))
            first, *rest = await asyncio.gather(*sends, return_exceptions=True)
            assert isinstance(first, encore.MessageId)
            for each in rest:
                assert isinstance(each, encore.TransportError)
                assert each.result == "ProducerQueueIsFull" and "chunk" in str(each)
        small = (producer.send(b"x") for _ in range(3))
        assert all(isinstance(each, encore.MessageId) for each in await asyncio.gather(*small))


async def test_with_block_if_queue_full_sends_wait_for_the_limit_across_partitions(
    client: encore.Client, topic: str, broker: BrokerThread
) -> None:
    broker.create_partitioned_topic(topic, 3)
    async with await client.create_producer(
        topic,
        max_pending_messages=4,
        max_pending_messages_across_partitions=3,
        block_if_queue_full=True,
        batching_enabled=False,
    ) as producer:
        sends = (producer.send(b"x") for _ in range(30))
        assert len(await asyncio.gather(*sends)) == 30


async def test_close_fails_waiting_sends_with_closed_error(
    client: encore.Client, topic: str, broker: BrokerThread
) -> None:
    producer = await client.create_producer(
        topic,
        max_pending_messages=2,
        block_if_queue_full=True,
        batching_max_publish_delay_ms=60_000,
    )
    sends = [asyncio.create_task(producer.send(b"x")) for _ in range(6)]
    await asyncio.sleep(0)
    await asyncio.gather(producer.close(), producer.close())
    results = await asyncio.gather(*sends, return_exceptions=True)
    assert all(isinstance(each, encore.ClosedError) for each in results)
    for call in (producer.send(b"x"), producer.flush()):
        with pytest.raises(encore.ClosedError):
            await call


@pytest.mark.parametrize("turns", range(6))
async def test_a_cancelled_send_or_flush_does_not_affect_later_sends(
    client: encore.Client, topic: str, turns: int
) -> None:
    async with await client.create_producer(topic, batching_max_publish_delay_ms=1) as producer:
        cancelled = asyncio.create_task(producer.send(b"cancelled"))
        for _ in range(turns):
            await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        flushing = asyncio.create_task(producer.flush())
        for _ in range(turns):
            await asyncio.sleep(0)
        flushing.cancel()
        await asyncio.gather(flushing, return_exceptions=True)
        await producer.send(b"last")
    sent = 2 if turns else 1  # a task cancelled before its first step never sent
    assert (await read_all(client, topic, sent))[-1].data() == b"last"


async def test_a_message_router_chooses_the_partition_and_its_errors_name_it(
    client: encore.Client, topic: str, broker: BrokerThread
) -> None:
    broker.create_partitioned_topic(topic, 3)
    choose = {b"a": 2, b"b": 9}

    def route(message: encore.Message, partitions: int) -> int:
        assert partitions == 3
        return choose[message.data()]

    async with await client.create_producer(
        topic,
        message_routing_mode=encore.PartitionsRoutingMode.CustomPartition,
        message_router=route,
    ) as producer:
        assert (await producer.send(b"a")).partition() == 2
        for content in (b"b", b"c"):
            with pytest.raises(encore.ConfigurationError, match="message_router"):
                await producer.send(content)
        assert (await producer.send(b"a")).partition() == 2


async def test_a_chunked_message_is_read_as_one_message(client: encore.Client, topic: str) -> None:
    payload = bytes(6 * 1024 * 1024)
    async with await client.create_producer(
        topic, batching_enabled=False, chunking_enabled=True
    ) as producer:
        sent = await producer.send(payload)
    (message,) = await read_all(client, topic, 1)
    assert message.data() == payload
    assert message.message_id() == sent
    assert sent.first_chunk is not None


async def test_a_message_over_the_size_limit_raises_message_too_big(
    client: encore.Client, topic: str
) -> None:
    async with await client.create_producer(topic, batching_enabled=False) as producer:
        with pytest.raises(encore.TransportError, match=r"MessageTooBig.*chunking_enabled"):
            await producer.send(bytes(6 * 1024 * 1024))


async def test_send_async_calls_back_on_the_loop(
    make_client: Callable[..., encore.Client], topic: str
) -> None:
    """As in the synchronous client. `flush` waits for the callbacks, too."""
    outcomes: list[tuple[Any, Any]] = []
    thread = threading.get_ident()
    threads: set[int] = set()

    def callback(result: Any, message_id: Any) -> None:
        threads.add(threading.get_ident())
        outcomes.append((result, message_id))

    async with make_client() as client, client.create_producer(topic) as producer:
        for number in range(100):
            assert producer.send_async(b"%d" % number, callback, properties={"n": "1"}) is None
        producer.send_async(b"quiet", None)
        assert outcomes == []
        await producer.flush()
        assert [result for result, _ in outcomes] == [pulsar.Result.Ok] * 100
        assert threads == {thread}
        ids = [message_id for _, message_id in outcomes]
        assert ids == sorted(ids) and len(set(ids)) == 100
        with pytest.raises(encore.ConfigurationError):
            producer.send_async("not bytes", callback)
        async with client.create_reader(topic, encore.MessageId.earliest) as reader:
            assert (await reader.read_next(timeout=5)).properties() == {"n": "1"}


async def test_send_async_reports_failures_to_its_callback_and_the_log(
    make_client: Callable[..., encore.Client], topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes: list[tuple[Any, Any]] = []

    def raising(result: Any, message_id: Any) -> None:
        outcomes.append((result, message_id))
        raise RuntimeError("the callback's own mistake")

    async with make_client(logger=encore.ConsoleLogger(encore.LoggerLevel.Warn)) as client:
        producer = await client.create_producer(
            topic, max_pending_messages=1, chunking_enabled=True, batching_enabled=False
        )
        producer.send_async(b"1", lambda *outcome: outcomes.append(outcome))
        producer.send_async(b"2", raising)
        producer.send_async(b"3", None)
        await producer.flush()
        assert {result.name for result, _ in outcomes} == {"Ok", "ProducerQueueIsFull"}
        assert [message_id for result, message_id in outcomes if result != pulsar.Result.Ok] == [
            None
        ]
        logged = capsys.readouterr().out
        assert "send_async to" in logged and "ProducerQueueIsFull" in logged
        await producer.send(b"4")  # a callback that raises does no harm
        outcomes.clear()
        producer.send_async(b"5", lambda *outcome: outcomes.append(outcome))
        await producer.close()
        assert len(outcomes) == 1
        with pytest.raises(encore.ClosedError):
            producer.send_async(b"6", None)


def test_the_stock_transport_refuses_an_initial_subscription_name() -> None:
    options = ProducerOptions(topic="t", initial_subscription_name="first")
    with pytest.raises(encore.NotSupportedError, match="initial_subscription_name"):
        producer_configuration(options)
