"""Late acks that fail, gathered and in tasks: each error is raised where the stock client raises
it.
"""

import asyncio
import os
import uuid

import pulsar
from pulsar.asyncio import Client

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
TOPIC = f"failing-acks-{uuid.uuid4().hex[:8]}"


async def main():
    client = Client(URL)
    consumer = await client.subscribe(TOPIC, "acks", pulsar.ConsumerType.Shared)
    producer = await client.create_producer(TOPIC)
    for _ in range(3):
        await producer.send(b"one")
    messages = [await consumer.receive() for _ in range(3)]
    await consumer.close()

    results = await asyncio.gather(*map(consumer.acknowledge, messages), return_exceptions=True)
    print([each.error() == pulsar.Result.AlreadyClosed for each in results])
    task = asyncio.create_task(consumer.acknowledge(messages[0]))
    await asyncio.wait([task])
    print(task.exception().error() == pulsar.Result.AlreadyClosed)
    await client.close()


asyncio.run(main())
