"""Null values over the stock transport, and between the two transports, on a broker's wire."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore.devbroker import BrokerThread
from pulsar_encore.schema import AvroSchema, Integer, JsonSchema, Record, StringSchema

EARLIEST = encore.MessageId.earliest
BOX = {"type": "record", "name": "Box", "fields": [{"name": "width", "type": "int"}]}
TRANSPORTS = ("stock", "native")


class Box(Record):  # type: ignore[misc]
    width = Integer()


SCHEMAS: dict[str, tuple[Callable[[], Any], Any, Any]] = {
    "none": (lambda: None, b"v", b""),
    "string": (StringSchema, "v", ""),
    "json": (lambda: JsonSchema(Box), Box(width=1), json.JSONDecodeError),
    "avro": (lambda: AvroSchema(None, BOX), {"width": 1}, EOFError),
}


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("reader", TRANSPORTS)
@pytest.mark.parametrize("writer", TRANSPORTS)
async def test_none_sent_by_each_transport_is_read_as_none(
    broker: BrokerThread, topic: str, writer: str, reader: str, name: str, batch: bool
) -> None:
    make, value, empty = SCHEMAS[name]
    schema = {} if make() is None else {"schema": make()}
    batching: dict[str, Any] = {"batching_enabled": batch, "batching_max_publish_delay_ms": 50}
    async with (
        encore.Client(broker.url, transport=writer) as writing,
        encore.Client(broker.url, transport=reader) as reading,
    ):
        async with await writing.create_producer(topic, **schema, **batching) as producer:
            await asyncio.gather(*(producer.send(each) for each in (value, None, value)))
        async with await writing.create_producer(topic, **batching) as producer:
            await producer.send(b"")
        async with await reading.create_reader(topic, EARLIEST, **schema) as readable:
            got = [await readable.read_next(5000) for _ in range(4)]
        assert [each.value() for each in got[:3]] == [value, None, value]
        assert [each.has_null_value() for each in got] == [False, True, False, False]
        assert [got[at].data() for at in (1, 3)] == [b"", b""]
        if isinstance(empty, type):
            with pytest.raises(empty):
                got[3].value()
        else:
            assert got[3].value() == empty


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_listener_a_batch_and_a_router_read_none(
    broker: BrokerThread, topic: str, transport: str
) -> None:
    listened: asyncio.Queue[Any] = asyncio.Queue()
    routed: list[Any] = []

    def listen(_: encore.Consumer, message: encore.Message) -> None:
        listened.put_nowait(message.value())

    def route(message: encore.Message, partitions: int) -> int:
        routed.append(message.value())
        return 0

    schema: dict[str, Any] = {"schema": StringSchema()}
    kind = {"consumer_type": encore.ConsumerType.Shared}
    broker.create_partitioned_topic(f"{topic}-parts", 2)
    async with (
        encore.Client(broker.url, transport=transport) as client,
        client.subscribe(topic, "a", message_listener=listen, **kind, **schema),
        client.subscribe(topic, "b", **kind, **schema) as consumer,
        await client.create_producer(topic, **schema) as producer,
        await client.create_producer(f"{topic}-parts", message_router=route, **schema) as parts,
    ):
        await producer.send(None)
        await parts.send(None)
        async with asyncio.timeout(10):
            assert await listened.get() is None
        assert [each.value() for each in await consumer.batch_receive()] == [None]
    assert routed == [None]
