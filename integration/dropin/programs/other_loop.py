"""A consumer and a producer belong to their loop: from another one they say so and send nothing."""

import asyncio
import os
import uuid

import pulsar_encore as pulsar

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
TOPIC = f"loops-{uuid.uuid4().hex[:8]}"
client = pulsar.Client(URL)


async def make():
    producer = await client.create_producer(TOPIC)
    consumer = await client.subscribe(TOPIC, "loops", pulsar.ConsumerType.Shared)
    reader = await client.create_reader(TOPIC, pulsar.MessageId.earliest)
    await producer.send(b"first")
    return producer, consumer, reader, await consumer.receive()


async def call(function):
    try:
        await function()
    except pulsar.WrongLoopError as error:
        return (
            isinstance(error, ValueError),
            isinstance(error, pulsar.EncoreError),
            "loop" in str(error),
        )
    return "no error"


async def check():
    reader = await client.create_reader(TOPIC, pulsar.MessageId.earliest)
    found = []
    while await reader.has_message_available():
        found.append((await reader.read_next()).data())
    await client.close()
    return found


producer, consumer, reader, message = asyncio.run(make())
print("send", asyncio.run(call(lambda: producer.send(b"never sent"))))
print("flush", asyncio.run(call(producer.flush)))
print("receive", asyncio.run(call(lambda: consumer.receive(timeout_millis=500))))
print("acknowledge", asyncio.run(call(lambda: consumer.acknowledge(message))))
print("negative_acknowledge", asyncio.run(call(lambda: consumer.negative_acknowledge(message))))
print("read_next", asyncio.run(call(lambda: reader.read_next(timeout_millis=500))))
print("what is there:", asyncio.run(check()))
