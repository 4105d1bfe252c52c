"""Jobs under a scheduler without asyncio: one global client, one loop for each job."""

import asyncio
import os
import uuid

import pulsar
from pulsar.asyncio import Client

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
TOPIC = f"nightly-{uuid.uuid4().hex[:8]}"

client = Client(URL)


def job(function):
    """The function that the scheduler calls."""

    def run(*args):
        return asyncio.run(function(*args))

    return run


@job
async def subscribe_first():
    consumer = await client.subscribe(TOPIC, "nightly", pulsar.ConsumerType.Shared)
    await consumer.close()
    return "subscribed"


@job
async def publish(count):
    producer = await client.create_producer(TOPIC)
    for number in range(count):
        await producer.send(f"report {number}".encode())
    await producer.close()
    return f"published {count}"


@job
async def publish_and_forget(text):
    producer = await client.create_producer(TOPIC)
    return (await producer.send(text)).entry_id() >= 0  # the client closes the producer


@job
async def consume(count):
    consumer = await client.subscribe(TOPIC, "nightly", pulsar.ConsumerType.Shared)
    found = []
    for _ in range(count):
        msg = await consumer.receive()
        found.append(msg.data().decode())
        await consumer.acknowledge(msg)
    await consumer.close()
    return found


@job
async def partitions():
    return len(await client.get_topic_partitions(TOPIC))


@job
async def close():
    await client.close()
    return "closed"


print(subscribe_first())
print(publish(3))
print(consume(3))
print(publish_and_forget(b"an extra"))
print(publish(1))
print(consume(2))
print(partitions())
print(close())
