"""Typed messages: bytes, text, JSON and Avro records, nested ones, defaults and enums."""

import asyncio
import enum
import os
import uuid

import pulsar
from pulsar.asyncio import Client
from pulsar.schema import (
    Array,
    AvroSchema,
    Boolean,
    Bytes,
    BytesSchema,
    CustomEnum,
    Double,
    Integer,
    JsonSchema,
    Long,
    Map,
    Record,
    String,
    StringSchema,
)

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
RUN = uuid.uuid4().hex[:8]


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


class Address(Record):
    street = String()
    number = Integer(default=1)


class Customer(Record):
    name = String(required=True)
    age = Integer()
    balance = Double(default=0.5)
    active = Boolean(default=True)
    visits = Long()
    tags = Array(String())
    scores = Map(Integer())
    address = Address()
    colour = CustomEnum(Colour)
    raw = Bytes()


def customer(raw=None):
    return Customer(
        name="Ada",
        age=36,
        visits=2**40,
        tags=["a", "b"],
        scores={"maths": 1},
        address=Address(street="St James's Square"),
        colour=Colour.GREEN,
        raw=raw,
    )


def show(value):
    if not isinstance(value, Record):
        return repr(value)
    fields = ("name", "age", "balance", "active", "visits", "tags", "scores", "colour", "raw")
    return [
        type(value).__name__,
        *(getattr(value, each) for each in fields),
        value.address.street,
        value.address.number,
    ]


async def round_trip(client, name, schema, values):
    topic = f"typed-{name}-{RUN}"
    consumer = await client.subscribe(topic, "typed", schema=schema)
    producer = await client.create_producer(topic, schema=schema)
    for value in values:
        await producer.send(value)
    for value in values:
        msg = await consumer.receive()
        decoded = msg.value()
        print(
            name,
            type(decoded) is type(value),
            decoded == value,
            show(decoded),
            len(msg.schema_version()),
        )
        await consumer.acknowledge(msg)
    await consumer.close()
    await producer.close()


async def main():
    client = Client(URL)
    await round_trip(client, "bytes", BytesSchema(), [b"", b"\x00\xff"])
    await round_trip(client, "text", StringSchema(), ["", "gruezi \N{GRINNING FACE}"])
    await round_trip(client, "json", JsonSchema(Customer), [customer()])
    await round_trip(client, "avro", AvroSchema(Customer), [customer(b"\x01\x02"), customer()])

    producer = await client.create_producer(f"typed-json-{RUN}", schema=JsonSchema(Customer))
    try:
        await producer.send(Address(street="not a customer"))
    except TypeError:
        print("refused")
    untyped = await client.subscribe(
        f"typed-json-{RUN}", "untyped", initial_position=pulsar.InitialPosition.Earliest
    )
    print((await untyped.receive()).data())
    await client.close()


asyncio.run(main())
