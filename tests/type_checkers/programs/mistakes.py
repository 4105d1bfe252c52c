"""Mistakes for a type checker: it must report each line that ends in `# wrong`, and no other."""

# pyright: strict

from enum import Enum

import pulsar_encore as encore
from pulsar_encore import schema


class Colour(Enum):
    RED = 1


class Address(schema.Record):
    street = schema.String()


class Order(schema.Record):
    id = schema.Integer()
    colour = schema.CustomEnum(Colour)
    address = Address()
    lines = schema.Array(schema.String())
    stops = schema.Array(Address())
    prices = schema.Map(schema.Double())
    broken = schema.Integer(default="one")  # wrong
    bare = schema.Array(str)  # wrong


order = Order(id=1)
order.id = 2
order.id = None
order.id = "two"  # wrong
number: int = Order().id  # wrong
print(order.nothing)  # wrong
print(order.address.street)  # wrong
order.colour = "RED"
order.colour = 1.5  # wrong
order.lines = [2]  # wrong
order.stops = [Address()]
order.stops = ["here"]  # wrong
order.prices = {"one": 1.0}
order.prices = {1: 1.0}  # wrong

schema.JsonSchema(Order).encode(order)
schema.JsonSchema(Order).encode("order")  # wrong
schema.JsonSchema(Order()).encode(order)  # wrong
print(schema.AvroSchema(Order).decode(b"").id)
print(schema.AvroSchema(Order).decode(b"").nothing)  # wrong
schema.AvroSchema(None, {"type": "record"}).encode({"id": 1})
schema.AvroSchema(None).decode(b"")  # wrong
schema.StringSchema().encode(b"bytes")  # wrong
schema.BytesSchema().encode("text")  # wrong


async def consume(client: encore.Client) -> None:
    await client.subscribe("orders")  # wrong
    await client.subscribe("orders", "billing", receiver_queue_size="many")  # wrong
    consumer = await client.subscribe("orders", "billing")
    consumer.receive().data()  # wrong
    message = await consumer.receive()
    await consumer.negative_acknowledge(message, delay="soon")  # wrong
    await consumer.reconsume_later(b"")  # wrong
    message.data().encode()  # wrong
    encore.DeadLetterPolicy(max_redeliver_count="3")  # wrong
    await client.create_producer("orders", compression_type="ZLib")  # wrong


def build(client: encore.Client) -> None:
    encore.Wroker(client, "orders", "billing", print)  # wrong
    encore.Worker(client, "orders", "billing", print, order="keys")  # wrong
    encore.Worker(client, "orders", handler=print)  # wrong
    encore.RetryPolicy(attempts="3")  # wrong
    encore.Breaker(on="ConnectionError")  # wrong
    encore.SubscribeOptions(consumer_type=encore.ConsumerType.Shared)  # wrong
