"""Write several messages at once into a database, with a batch receive policy."""

import asyncio
import os
import uuid

import pulsar_encore as pulsar

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
TOPIC = f"rows-{uuid.uuid4().hex[:8]}"


async def main():
    client = pulsar.Client(URL)
    policy = pulsar.ConsumerBatchReceivePolicy(10, 1024 * 1024, 500)
    consumer = await client.subscribe(TOPIC, "rows", batch_receive_policy=policy)
    producer = await client.create_producer(TOPIC, batching_enabled=False)
    for number in range(25):
        await producer.send(b"%d" % number)
    rows = []
    sizes = []
    while len(rows) < 25:
        messages = await consumer.batch_receive()
        sizes.append(len(messages))
        for msg in messages:
            rows.append(int(msg.data()))
            await consumer.acknowledge(msg)
    print(rows == list(range(25)), max(sizes), sum(sizes))
    print(await consumer.batch_receive())
    await client.close()


asyncio.run(main())
