"""Four workers on one consumer, each with its own receive loop, in one gather."""

import asyncio
import os
import uuid

import pulsar
from pulsar.asyncio import Client

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
TOPIC = f"jobs-{uuid.uuid4().hex[:8]}"
JOBS = 60
WORKERS = 4

done = []


async def worker(consumer, finished):
    while True:
        msg = await consumer.receive()
        await asyncio.sleep(0.005)  # the work
        done.append(int(msg.data()))
        await consumer.acknowledge(msg)
        if len(done) == JOBS:
            finished.set()


async def main():
    client = Client(URL)
    consumer = await client.subscribe(TOPIC, "pool", pulsar.ConsumerType.Shared)
    producer = await client.create_producer(TOPIC)
    ids = await asyncio.gather(*(producer.send(str(job).encode()) for job in range(JOBS)))
    print(len(set(map(str, ids))), "ids")

    finished = asyncio.Event()
    workers = asyncio.gather(*(worker(consumer, finished) for _ in range(WORKERS)))
    await asyncio.wait_for(finished.wait(), 20)
    workers.cancel()
    try:
        await workers
    except asyncio.CancelledError:
        print("workers stopped")
    print(sorted(done) == list(range(JOBS)))
    await client.close()


asyncio.run(main())
