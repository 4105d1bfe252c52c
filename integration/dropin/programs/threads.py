"""Threads with an event loop and a client each."""

import asyncio
import os
import threading
import uuid

import pulsar
from pulsar.asyncio import Client

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
TOPIC = f"threads-{uuid.uuid4().hex[:8]}"
THREADS = 3
EACH = 10

ready = threading.Barrier(THREADS + 1)
results = {}


async def work(name):
    client = Client(URL)
    consumer = await client.subscribe(f"{TOPIC}-{name}", "thread", pulsar.ConsumerType.Shared)
    await asyncio.to_thread(ready.wait, 30)
    results[name] = []
    for _ in range(EACH):
        msg = await consumer.receive()
        results[name].append(msg.data().decode())
        await consumer.acknowledge(msg)
    await client.close()


def thread(name):
    asyncio.run(work(name))


async def main():
    client = Client(URL)
    producers = [await client.create_producer(f"{TOPIC}-{name}") for name in range(THREADS)]
    await asyncio.to_thread(ready.wait, 30)
    await asyncio.gather(
        *(producer.send(f"{n}".encode()) for producer in producers for n in range(EACH))
    )
    await client.close()


threads = [threading.Thread(target=thread, args=(name,)) for name in range(THREADS)]
for each in threads:
    each.start()
asyncio.run(main())
for each in threads:
    each.join(30)
for name in sorted(results):
    print(name, " ".join(results[name]))
