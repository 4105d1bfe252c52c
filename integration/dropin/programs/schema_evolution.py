"""A record gains a field: old and new readers read old and new messages."""

import asyncio
import os
import uuid

import pulsar
from pulsar.asyncio import Client
from pulsar.schema import AvroSchema, Integer, Record, String

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
TOPIC = f"evolving-{uuid.uuid4().hex[:8]}"


class First(Record):
    _avro_namespace = "shop"
    name = String()


class Second(Record):
    _avro_namespace = "shop"
    name = String()
    size = Integer(required=True, default=7, required_default=True)


First.__name__ = Second.__name__ = "Item"  # one record in two versions


async def main():
    client = Client(URL)
    old = await client.create_producer(TOPIC, schema=AvroSchema(First))
    await old.send(First(name="shelf"))
    new = await client.create_producer(TOPIC, schema=AvroSchema(Second))
    await new.send(Second(name="table", size=9))
    await old.send(First(name="chair"))

    for reader in (First, Second):
        consumer = await client.subscribe(
            TOPIC,
            f"reads-{'size' if hasattr(reader(), 'size') else 'name'}",
            schema=AvroSchema(reader),
            initial_position=pulsar.InitialPosition.Earliest,
        )
        for _ in range(3):
            msg = await consumer.receive()
            item = msg.value()
            print(item.name, getattr(item, "size", "no size"), len(msg.schema_version()))
            await consumer.acknowledge(msg)
        await consumer.close()
    await client.close()


asyncio.run(main())
