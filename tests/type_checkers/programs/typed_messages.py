"""The types that a checker finds for the values of messages, by the schema of their consumer."""

# pyright: strict

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, assert_type

import msgspec
import pydantic

import pulsar_encore as encore
from pulsar_encore import schema


@dataclass
class Order:
    id: int


class Customer(TypedDict):
    name: str


class Model(pydantic.BaseModel):
    id: int


class Struct(msgspec.Struct):
    id: int


class Old(schema.Record):
    id = schema.Integer()


class Words:
    def encode(self, value: str) -> bytes:
        return value.encode()

    def decode(self, data: bytes) -> str:
        return data.decode()


async def bill(order: Order, message: encore.Message[Order]) -> None:
    assert_type(message.value(), Order)


async def consume(client: encore.Client) -> None:
    consumer = await client.subscribe("orders", "billing", schema=encore.Json(Order))
    assert_type(consumer, encore.Consumer[Order])
    message = await consumer.receive()
    assert_type(message, encore.Message[Order])
    await bill(message.value(), message)
    await consumer.acknowledge(message)
    async for each in consumer:
        assert_type(each.value(), Order)
    for each in await consumer.batch_receive():
        assert_type(each.value().id, int)
    for lease in await consumer.pop(10, lease=60):
        assert_type(lease, encore.Lease[Order])
        assert_type(lease.message.value(), Order)
    async with client.subscribe("orders", "s", schema=encore.Json(Order, null=True)) as lenient:
        assert_type((await lenient.receive()).value(), Order | None)


async def other_models(client: encore.Client) -> None:
    customers = await client.subscribe("customers", "s", schema=encore.Json(Customer))
    assert_type((await customers.receive()).value(), Customer)
    models = await client.subscribe("models", "s", schema=encore.Json(Model))
    assert_type((await models.receive()).value(), Model)
    structs = await client.subscribe("structs", "s", schema=encore.Json(Struct))
    assert_type((await structs.receive()).value(), Struct)
    lists = await client.subscribe("lists", "s", schema=encore.Json(list[Order]))
    assert_type((await lists.receive()).value(), list[Order])
    words = await client.subscribe("words", "s", schema=Words())
    assert_type((await words.receive()).value(), str)
    texts = await client.subscribe("texts", "s", schema=schema.StringSchema())
    assert_type((await texts.receive()).value(), str)
    records = await client.subscribe("records", "s", schema=schema.JsonSchema(Old))
    assert_type((await records.receive()).value(), Old)


async def pairs(client: encore.Client) -> None:
    rows = encore.KeyValue(
        encore.Json(Customer), encore.Json(Order, null=True), encoding="separated"
    )
    consumer = await client.subscribe("rows", "s", schema=rows)
    customer, order = (await consumer.receive()).value()
    assert_type(customer, Customer)
    assert_type(order, Order | None)
    words = encore.KeyValue(schema.StringSchema(), schema.JsonSchema(Old))
    assert_type(
        (await (await client.subscribe("t", "s", schema=words)).receive()).value(), tuple[str, Old]
    )
    producer = await client.create_producer("rows", schema=rows)
    await producer.send(({"name": "Ada"}, None))


async def generic(client: encore.Client) -> None:
    consumer = await client.subscribe("any", "s", schema=encore.AutoConsume())
    assert_type((await consumer.receive()).value(), Any)


async def without_schema(client: encore.Client, anything: Any) -> None:
    plain = await client.subscribe("plain", "s")
    assert_type((await plain.receive()).value(), Any)
    unknown = await client.subscribe("plain", "s", schema=anything)
    assert_type((await unknown.receive()).value(), Any)


async def produce(client: encore.Client) -> None:
    async with client.create_producer("orders", schema=encore.Json(Order)) as producer:
        assert_type(producer, encore.Producer[Order])
        await producer.send(Order(1))
        await producer.send(None)


async def read(client: encore.Client) -> None:
    start = encore.MessageId.earliest
    async with client.create_reader("orders", start, schema=encore.Json(Order)) as reader:
        assert_type((await reader.read_next()).value(), Order)
        async for message in reader:
            assert_type(message.value(), Order)


# Classes without a type parameter, as in programs for earlier versions.
async def settle(consumer: encore.Consumer, messages: Sequence[encore.Message]) -> None:
    await consumer.acknowledge(messages)


async def settle_typed(consumer: encore.Consumer[Order]) -> None:
    await settle(consumer, await consumer.batch_receive())


def ids(messages: Sequence[encore.Message[object]]) -> list[encore.MessageId]:
    return [each.message_id() for each in messages]


def ids_of_orders(messages: list[encore.Message[Order]]) -> list[encore.MessageId]:
    return ids(messages)


async def bill_all(orders: list[Order]) -> None: ...


class Billing:
    async def bill(self, order: Order, message: encore.Message[Order], tries: int = 3) -> str:
        return f"{order.id} {message.key} {tries}"

    def print(self, order: Order) -> None:
        print(order.id)


async def log(payload: bytes) -> None: ...


def work(client: encore.Client) -> None:
    orders = encore.Json(Order)
    encore.Worker(client, "orders", "a", bill, schema=orders)
    encore.Worker(client, "orders", "b", Billing().bill, schema=orders, publish="invoices")
    encore.Worker(client, "orders", "c", Billing().print, schema=orders)
    encore.Worker(client, "orders", "d", log)
    encore.BatchWorker(client, "orders", "e", bill_all, schema=orders)
