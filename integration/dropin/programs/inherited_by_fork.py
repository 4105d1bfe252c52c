"""A forked child gets an error at once when it uses its parent's objects."""

import asyncio
import multiprocessing
import os
import time
import uuid

import pulsar_encore as pulsar

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
TOPIC = f"inherited-{uuid.uuid4().hex[:8]}"
forking = multiprocessing.get_context("fork")


def child(client, producer, consumer, reader, results):
    calls = {
        "receive": lambda: consumer.receive(timeout_millis=1000),
        "acknowledge": lambda: consumer.acknowledge(pulsar.MessageId.earliest),
        "send": lambda: producer.send(b"from the child"),
        "read_next": lambda: reader.read_next(timeout_millis=1000),
        "create_producer": lambda: client.create_producer(TOPIC),
        "close": consumer.close,
    }
    for name, call in calls.items():
        start = time.monotonic()

        async def make(call=call):
            await call()

        try:
            asyncio.run(make())
        except Exception as error:
            results.put((name, type(error).__name__, time.monotonic() - start < 1))
        else:
            results.put((name, "no error", False))

    async def own():
        async with pulsar.Client(URL) as mine:
            producer = await mine.create_producer(TOPIC)
            await producer.send(b"by a client of its own")

    asyncio.run(own())
    results.put(("own client", "works", True))


async def main():
    client = pulsar.Client(URL)
    consumer = await client.subscribe(TOPIC, "parent", pulsar.ConsumerType.Shared)
    producer = await client.create_producer(TOPIC)
    reader = await client.create_reader(TOPIC, pulsar.MessageId.latest)
    results = forking.Queue()
    process = forking.Process(target=child, args=(client, producer, consumer, reader, results))
    process.start()
    for _ in range(7):
        print(*await asyncio.to_thread(results.get, timeout=20))
    await asyncio.to_thread(process.join, 20)
    print("exit code", process.exitcode)
    msg = await consumer.receive(timeout_millis=10000)
    print("the parent goes on:", msg.data().decode())
    await consumer.acknowledge(msg)
    await client.close()


asyncio.run(main())
