"""One global producer, used with a loop for each call, as in a blocking web framework."""

import asyncio
import os
import uuid

import pulsar
from pulsar.asyncio import Client

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
TOPIC = f"global-{uuid.uuid4().hex[:8]}"

client = Client(URL)


async def setup():
    consumer = await client.subscribe(TOPIC, "views", pulsar.ConsumerType.Shared)
    await consumer.close()
    return await client.create_producer(TOPIC)


producer = asyncio.run(setup())


def view(text):
    async def respond():
        await producer.send(text.encode())
        return f"{text} accepted"

    return asyncio.run(respond())


async def count(expected):
    consumer = await client.subscribe(TOPIC, "views", pulsar.ConsumerType.Shared)
    found = []
    for _ in range(expected):
        msg = await consumer.receive()
        found.append(msg.data())
        await consumer.acknowledge(msg)
    await producer.flush()
    await producer.close()
    await client.close()
    return found


print(view("one"))
print(view("two"))
print(view("three"))
print(asyncio.run(count(3)))
