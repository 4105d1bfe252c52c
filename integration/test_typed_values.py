"""Codecs and Java's schemas of the same classes, on a real Pulsar and over both transports."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import pytest

import pulsar_encore as encore
from pulsar_encore import Float32, Int32, Json, KeyValue
from tests.harness.pulsar_server import Server

from .letters.java_client import JavaClient, java_client, missing_tools
from .letters.letter_checks import read_out, subscribe

asyncio.set_event_loop(None)

TRANSPORTS = ("native", "stock")
each_transport = pytest.mark.parametrize("transport", TRANSPORTS)
each_encoding = pytest.mark.parametrize("encoding", ["inline", "separated"])


class Colour(Enum):
    RED = "RED"
    BLUE = "BLUE"


@dataclass
class Line:
    sku: str
    count: Int32


@dataclass
class OrderKey:
    id: int


@dataclass
class Order:
    """As the class of this name in Main.java."""

    id: int
    count: Int32
    total: float
    share: Float32
    paid: bool
    name: str
    colour: Colour
    raw: bytes
    lines: list[Line]
    bySku: dict[str, Line]
    colours: list[Colour]
    number: int | None = None


ORDER = Order(
    id=7,
    count=3,
    total=1.5,
    share=0.5,
    paid=True,
    name="Ada",
    colour=Colour.BLUE,
    raw=b"\xff\x00",
    lines=[Line("x", 2)],
    bySku={"x": Line("x", 2)},
    colours=[Colour.RED],
)
#: The order as Java prints it.
PRINTED = "7 3 1.5 0.5 true Ada null BLUE [-1, 0] [2 of x] {x=2 of x} [RED]"


def pairs(encoding: Literal["inline", "separated"]) -> KeyValue[Any]:
    return KeyValue(Json(OrderKey, null=True), Json(Order, null=True), encoding=encoding)


@pytest.fixture(scope="module")
def java(pulsar: Server) -> Iterator[JavaClient]:
    missing_names = missing_tools()
    if missing_names is not None:
        pytest.fail(f"the comparison with Java needs {missing_names}")
    with java_client(pulsar.service_url) as client:
        yield client


async def call(java: JavaClient, *arguments: object) -> list[dict[str, Any]]:
    return await asyncio.to_thread(java.call, *arguments)


async def java_reads(java: JavaClient, topic: str, schema: str) -> list[str | None]:
    """Return the values that Java prints, or the names of its errors."""
    return [
        each["failure"] or each["value"] for each in await call(java, "read-values", topic, schema)
    ]


@each_transport
@pytest.mark.parametrize("java_first", [True, False])
async def test_json_of_java_and_ours_are_one_schema(
    pulsar: Server, java: JavaClient, topic: str, transport: str, java_first: bool
) -> None:
    async with encore.Client(pulsar.service_url, transport=transport) as client:
        for by_java in (java_first, not java_first):
            if by_java:
                await call(java, "send-values", topic, "order", "single")
            else:
                async with client.create_producer(topic, schema=Json(Order)) as producer:
                    await producer.send(ORDER)
                    await producer.send(None)
        got = await read_out(client, topic, schema=Json(Order, null=True, register=True))
        assert [message.value() for message in got] == [ORDER, None, ORDER, None]
        assert {message.int_schema_version() for message in got} == {0, 1}
        assert await java_reads(java, topic, "order") == [PRINTED, None, PRINTED, None]


@each_transport
@each_encoding
async def test_pairs_of_java_are_read(
    pulsar: Server, java: JavaClient, topic: str, transport: str, encoding: Any
) -> None:
    await call(java, "send-values", topic, f"order-{encoding}", "batched")
    async with encore.Client(pulsar.service_url, transport=transport) as client:
        got = await read_out(client, topic, schema=pairs(encoding))
    expected = [(OrderKey(5), ORDER), (OrderKey(5), None), (None, ORDER), (None, None)]
    assert [message.value() for message in got] == expected


@each_encoding
async def test_java_reads_our_pairs(
    pulsar: Server, java: JavaClient, topic: str, encoding: Any
) -> None:
    values = [(OrderKey(5), ORDER), (OrderKey(5), None), (None, ORDER)]
    async with encore.Client(pulsar.service_url, transport="native") as client:
        async with client.create_producer(topic, schema=pairs(encoding)) as producer:
            for each in values:
                await producer.send(each)
        await subscribe(
            client,
            topic,
            1,
            schema=KeyValue(Json(OrderKey), Json(Order), register=True, encoding=encoding),
        )
    printed = await java_reads(java, topic, f"order-{encoding}")
    assert len(printed) == 3
    for text, (key, value) in zip(printed, values, strict=True):
        assert text is not None
        assert ("key 5" in text) is (key is not None)
        assert (PRINTED in text) is (value is not None)
    await call(java, "send-values", topic, f"order-{encoding}", "single")


@pytest.mark.parametrize("schema", ["order", "order-avro"])
@each_transport
async def test_auto_consume_reads_records_of_java(
    pulsar: Server, java: JavaClient, topic: str, transport: str, schema: str
) -> None:
    await call(java, "send-values", topic, schema, "single")
    async with encore.Client(pulsar.service_url, transport=transport) as client:
        got = await read_out(client, topic, schema=encore.AutoConsume())
    record, null = (message.value() for message in got)
    assert null is None
    assert (record["id"], record["count"], record["colours"]) == (7, 3, ["RED"])
    assert record["lines"] == [{"sku": "x", "count": 2}]
    assert record["bySku"] == {"x": {"sku": "x", "count": 2}}


@pytest.mark.parametrize("schema", ["order-inline", "order-separated", "order-avro-separated"])
async def test_auto_consume_reads_pairs_of_java(
    pulsar: Server, java: JavaClient, topic: str, schema: str
) -> None:
    await call(java, "send-values", topic, schema, "single")
    async with encore.Client(pulsar.service_url, transport="native") as client:
        got = await read_out(client, topic, schema=encore.AutoConsume())
    both, no_value, no_key, nothing = (message.value() for message in got)
    assert (both[0], both[1]["name"]) == ({"id": 5}, "Ada")
    assert no_value == ({"id": 5}, None)
    assert (no_key[0], no_key[1]["name"]) == (None, "Ada")
    assert nothing == (None if schema == "order-inline" else (None, None))


@each_encoding
async def test_a_dead_letter_of_a_pair_is_read_as_its_original(
    pulsar: Server, java: JavaClient, topic: str, encoding: Any
) -> None:
    await call(java, "send-values", topic, f"order-{encoding}", "batched")
    async with encore.Client(pulsar.service_url, transport="native") as client:
        async with await subscribe(client, topic, 1, schema=pairs(encoding)) as consumer:
            values = []
            for _ in range(8):
                message = await consumer.receive(timeout=20)
                values.append(message.value())
                await consumer.negative_acknowledge(message, delay=0.1)
            letters = await client.subscribe(
                f"{topic}-s-DLQ",
                "letters",
                schema=pairs(encoding),
                initial_position=encore.InitialPosition.Earliest,
            )
            found = [(await letters.receive(timeout=20)).value() for _ in range(4)]
    assert sorted(map(repr, found)) == sorted(map(repr, values[:4]))
    assert await java_reads(java, f"{topic}-s-DLQ", f"order-{encoding}")
