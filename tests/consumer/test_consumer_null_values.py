"""`value()` returns None for a message without a value; an empty payload is not null."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from consumer_kit import TOPIC

import pulsar_encore as encore
from pulsar_encore.deadletters import DeadLetters
from pulsar_encore.schema import (
    AvroSchema,
    BytesSchema,
    Integer,
    JsonSchema,
    Record,
    StringSchema,
)
from pulsar_encore.testing import MemoryTransport
from pulsar_encore.transport.native.consumer.message_views import PlainMessage
from pulsar_encore.wire import encode_batch, pb

EARLIEST = encore.MessageId.earliest
BOX = {"type": "record", "name": "Box", "fields": [{"name": "width", "type": "int"}]}


class Box(Record):  # type: ignore[misc]
    width = Integer()


def avro() -> Any:
    return AvroSchema(None, BOX)


#: A schema, a value, and the result for an empty payload: a value, or the type of the error.
SCHEMAS: dict[str, tuple[Callable[[], Any], Any, Any]] = {
    "none": (lambda: None, b"v", b""),
    "bytes": (BytesSchema, b"v", b""),
    "string": (StringSchema, "v", ""),
    "json": (lambda: JsonSchema(Box), Box(width=1), json.JSONDecodeError),
    "avro": (avro, {"width": 1}, EOFError),
}
every_schema = pytest.mark.parametrize("name", SCHEMAS)


def options(name: str, **more: Any) -> dict[str, Any]:
    schema = SCHEMAS[name][0]()
    return more if schema is None else {"schema": schema, **more}


async def publish(client: encore.Client, name: str, *, batch: bool) -> None:
    """Send a value, a null and another value, then an empty payload without a schema."""
    _, value, _ = SCHEMAS[name]
    producing = options(name, batching_enabled=batch, batching_max_publish_delay_ms=10)
    async with await client.create_producer(TOPIC, **producing) as producer:
        await asyncio.gather(*(producer.send(each) for each in (value, None, value)))
    async with await client.create_producer(TOPIC, batching_enabled=batch) as producer:
        await producer.send(b"")


def check(name: str, got: list[encore.Message]) -> None:
    _, value, empty = SCHEMAS[name]
    assert [each.value() for each in got[:3]] == [value, None, value]
    assert [each.has_null_value() for each in got] == [False, True, False, False]
    assert [got[at].data() for at in (1, 3)] == [b"", b""]
    if isinstance(empty, type):
        with pytest.raises(empty):
            got[3].value()
    else:
        assert got[3].value() == empty


@every_schema
@pytest.mark.parametrize("batch", [False, True])
async def test_a_null_value_is_read_as_none_by_every_receiving_call(
    client: encore.Client, name: str, batch: bool
) -> None:
    await publish(client, name, batch=batch)
    shared = options(
        name,
        consumer_type=encore.ConsumerType.Shared,
        initial_position=encore.InitialPosition.Earliest,
    )
    async with client.subscribe(TOPIC, "receive", **shared) as consumer:
        check(name, [await consumer.receive(timeout=5) for _ in range(4)])
    policy = encore.ConsumerBatchReceivePolicy(4, -1, 1000)
    async with client.subscribe(TOPIC, "b", batch_receive_policy=policy, **shared) as consumer:
        check(name, list(await consumer.batch_receive()))
    async with client.subscribe(TOPIC, "pop", **shared) as consumer:
        leases = await consumer.pop(max_messages=4, lease=60, wait=5)
        check(name, [each.message for each in leases])
    async with await client.create_reader(TOPIC, EARLIEST, **options(name)) as reader:
        check(name, [await reader.read_next(5000) for _ in range(4)])
    listened: asyncio.Queue[encore.Message] = asyncio.Queue()

    def listen(_: encore.Consumer, message: encore.Message) -> None:
        listened.put_nowait(message)

    async with client.subscribe(TOPIC, "hear", message_listener=listen, **shared):
        check(name, [await listened.get() for _ in range(4)])


@every_schema
@pytest.mark.parametrize("act", ["nack", "reconsume_later"])
async def test_letters_and_replays_keep_a_null_value(
    client: encore.Client, name: str, act: str
) -> None:
    await publish(client, name, batch=True)
    consuming = options(
        name,
        consumer_type=encore.ConsumerType.Shared,
        initial_position=encore.InitialPosition.Earliest,
        retry_enable=True,
        dead_letter_policy=encore.DeadLetterPolicy(1),
        negative_ack_redelivery_delay_ms=100,
    )
    retried = []
    async with client.subscribe(TOPIC, "s", **consuming) as consumer:
        for delivery in range(8):
            message = await consumer.receive(timeout=60)
            if delivery > 3 and message.has_null_value():
                retried.append(message.value())
            if act == "nack":
                await consumer.negative_acknowledge(message)
            else:
                await consumer.reconsume_later(message, delay=1)
        await asyncio.sleep(5)
    assert retried == [None]
    dead = f"{TOPIC}-s-DLQ"
    async with await client.create_reader(dead, EARLIEST, **options(name)) as reader:
        letters = [await reader.read_next(60_000) for _ in range(4)]
        nulls = [each for each in letters if each.has_null_value()]
        assert [(each.value(), each.data()) for each in nulls] == [(None, b"")]
    async with client.subscribe(TOPIC, "home", **options(name)) as consumer:
        await DeadLetters(client, dead).replay()
        home = [await consumer.receive(timeout=60) for _ in range(4)]
        assert [each.value() for each in home if each.has_null_value()] == [None]
        assert sum(each.data() == b"" for each in home) == 2


@every_schema
def test_a_null_value_flag_wins_over_a_payload(name: str) -> None:
    """The Java client returns null if `null_value` is set, for any payload."""
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, null_value=True
    ).SerializeToString()
    body = len(metadata).to_bytes(4, "big") + metadata + b"v"
    raw = PlainMessage(TOPIC, body)
    message = encore.Message.of_reader(raw, SCHEMAS[name][0](), encore.MessageId(-1, 3, 4))
    assert (message.value(), message.data()) == (None, b"v")


def test_message_batch_reads_a_null_value_as_none() -> None:
    null = pb.SingleMessageMetadata(null_value=True)
    payload = encode_batch([(null, b""), (pb.SingleMessageMetadata(), b"")])
    entry = encore.MessageId(-1, 3, 4)
    batch = encore.MessageBatch().with_message_id(entry).parse_from(payload, 2)
    assert [each.value() for each in batch] == [None, b""]


@pytest.mark.parametrize("schema", [None, StringSchema(), JsonSchema(Box)])
async def test_a_message_router_sees_a_null_value_as_none(
    client: encore.Client, transport: MemoryTransport, schema: Any
) -> None:
    transport.catalogue.create_partitioned("parts", 2)
    seen: list[Any] = []

    def route(message: encore.Message, partitions: int) -> int:
        seen.append(message.value())
        return 1

    routing = {} if schema is None else {"schema": schema}
    async with await client.create_producer("parts", message_router=route, **routing) as producer:
        await producer.send(None)
    assert seen == [None]
