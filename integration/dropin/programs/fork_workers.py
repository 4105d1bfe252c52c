"""Prefork: the parent continues to use its client, and each child creates its own."""

import asyncio
import multiprocessing
import os
import uuid

import pulsar
from pulsar.asyncio import Client

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
TOPIC = f"forked-{uuid.uuid4().hex[:8]}"
forking = multiprocessing.get_context("fork")


async def child_work(number, results):
    client = Client(URL)
    producer = await client.create_producer(TOPIC)
    await producer.send(f"from child {number}".encode())
    await client.close()
    results.put(number)


def child(number, results):
    asyncio.run(child_work(number, results))


async def main():
    client = Client(URL)
    consumer = await client.subscribe(TOPIC, "parent", pulsar.ConsumerType.Shared)
    producer = await client.create_producer(TOPIC)
    await producer.send(b"from the parent")

    results = forking.Queue()
    children = [forking.Process(target=child, args=(number, results)) for number in range(2)]
    for each in children:
        each.start()
    print(sorted([await asyncio.to_thread(results.get, timeout=30) for _ in children]))
    for each in children:
        await asyncio.to_thread(each.join, 30)
    print([each.exitcode for each in children])

    await producer.send(b"from the parent again")
    found = []
    for _ in range(4):
        msg = await consumer.receive()
        found.append(msg.data().decode())
        await consumer.acknowledge(msg)
    print(sorted(found))
    await client.close()


asyncio.run(main())
