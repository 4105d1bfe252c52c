"""A worker under a supervisor: SIGTERM ends it midway, and the next worker continues."""

import asyncio
import os
import signal
import uuid

import pulsar
from pulsar.asyncio import Client

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
TOPIC = f"terminated-{uuid.uuid4().hex[:8]}"


async def worker(stop_after):
    client = Client(URL)
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    consumer = await client.subscribe(TOPIC, "worker", pulsar.ConsumerType.Shared)
    stopped = asyncio.create_task(stopping.wait())
    done = []
    while True:
        receiving = asyncio.create_task(consumer.receive())
        await asyncio.wait([receiving, stopped], return_when=asyncio.FIRST_COMPLETED)
        if stopping.is_set():
            receiving.cancel()
            break
        msg = receiving.result()
        done.append(int(msg.data()))
        await consumer.acknowledge(msg)
        if len(done) == stop_after:
            os.kill(os.getpid(), signal.SIGTERM)
    await consumer.close()
    await client.close()
    return done


async def publish():
    client = Client(URL)
    await (await client.subscribe(TOPIC, "worker", pulsar.ConsumerType.Shared)).close()
    producer = await client.create_producer(TOPIC, batching_enabled=False)
    for number in range(20):
        await producer.send(str(number).encode())
    await client.close()


asyncio.run(publish())
first = asyncio.run(worker(7))
print(len(first))
second = asyncio.run(worker(20 - len(first)))
print(sorted(first + second) == list(range(20)))
