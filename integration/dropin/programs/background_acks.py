"""Ack in the background: create_task, gather, wait_for, and by id."""

import asyncio
import os
import uuid

import pulsar
from pulsar.asyncio import Client

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
TOPIC = f"acks-{uuid.uuid4().hex[:8]}"


async def main():
    client = Client(URL)
    consumer = await client.subscribe(TOPIC, "acks", pulsar.ConsumerType.Shared)
    producer = await client.create_producer(TOPIC, batching_enabled=False)
    for number in range(12):
        await producer.send(str(number).encode())
    messages = [await consumer.receive() for _ in range(12)]

    task = asyncio.create_task(consumer.acknowledge(messages[0]))
    print("task", await task)
    background = {asyncio.create_task(consumer.acknowledge(m)) for m in messages[1:4]}
    for each in background:
        each.add_done_callback(background.discard)
    print("gather", await asyncio.gather(*map(consumer.acknowledge, messages[4:7])))
    print("wait_for", await asyncio.wait_for(consumer.acknowledge(messages[7]), 5))
    print("by id", await consumer.acknowledge(messages[8].message_id()))
    finished, _ = await asyncio.wait([asyncio.ensure_future(consumer.acknowledge(messages[9]))])
    print("wait", [each.result() for each in finished])
    async with asyncio.TaskGroup() as group:
        group.create_task(consumer.acknowledge(messages[10]))
    await asyncio.sleep(0.3)
    await consumer.close()

    again = await client.subscribe(TOPIC, "acks", pulsar.ConsumerType.Shared)
    left = await again.receive()
    print("left", left.data().decode())
    await again.acknowledge(left)
    await client.close()


asyncio.run(main())
