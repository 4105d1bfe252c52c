"""Delayed messages: deliver_after and deliver_at are delivered in the order of their times."""

import asyncio
import os
import time
import uuid
from datetime import timedelta

import pulsar
from pulsar.asyncio import Client

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
TOPIC = f"reminders-{uuid.uuid4().hex[:8]}"


async def main():
    client = Client(URL)
    consumer = await client.subscribe(TOPIC, "reminded", pulsar.ConsumerType.Shared)
    producer = await client.create_producer(TOPIC)
    await producer.send(b"late", deliver_after=timedelta(seconds=5))
    await producer.send(b"soon", deliver_at=int(time.time() * 1000) + 1500)
    await producer.send(b"now", event_timestamp=1234)
    for _ in range(3):
        msg = await consumer.receive()
        print(msg.data(), msg.event_timestamp())
        await consumer.acknowledge(msg)
    await client.close()


asyncio.run(main())
