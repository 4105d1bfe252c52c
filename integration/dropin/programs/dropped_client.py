"""A function creates a producer and drops the client; the producer still works."""

import asyncio
import gc
import os
import uuid

import pulsar
from pulsar.asyncio import Client

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
TOPIC = f"dropped-{uuid.uuid4().hex[:8]}"


async def get_consumer():
    return await Client(URL).subscribe(TOPIC, "kept", pulsar.ConsumerType.Shared)


async def get_producer():
    client = Client(URL)
    return await client.create_producer(TOPIC)


async def main():
    consumer = await get_consumer()
    producer = await get_producer()
    gc.collect()
    for text in (b"one", b"two"):
        await producer.send(text)
        msg = await consumer.receive()
        print(msg.data(), producer.is_connected())
        await consumer.acknowledge(msg)
        gc.collect()
    await producer.close()
    await consumer.close()


asyncio.run(main())
