"""Ctrl-C during a receive; the program prints a farewell, and another loop continues."""

import asyncio
import os
import signal
import threading
import uuid

import pulsar
from pulsar.asyncio import Client

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
TOPIC = f"interrupted-{uuid.uuid4().hex[:8]}"


async def consume(client):
    consumer = await client.subscribe(TOPIC, "interrupted", pulsar.ConsumerType.Shared)
    producer = await client.create_producer(TOPIC)
    await producer.send(b"one")
    msg = await consumer.receive()
    print(msg.data())
    await consumer.acknowledge(msg)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        await consumer.receive()
    finally:
        print("cleaning up")
        await consumer.close()
        await client.close()


async def after():
    client = Client(URL)
    consumer = await client.subscribe(TOPIC, "interrupted", pulsar.ConsumerType.Shared)
    producer = await client.create_producer(TOPIC)
    await producer.send(b"two")
    print((await consumer.receive()).data())
    await client.close()


try:
    asyncio.run(consume(Client(URL)))
except KeyboardInterrupt:
    print("good bye")
asyncio.run(after())
