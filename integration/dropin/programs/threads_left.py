"""No thread is left by one client, or by ten in threads of their own, closed or not."""

import asyncio
import logging
import os
import threading
import uuid

import pulsar_encore as pulsar

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
TOPIC = f"threads-left-{uuid.uuid4().hex[:8]}"
logging.basicConfig(level=logging.CRITICAL)


def threads():
    # asyncio resolves names in a thread of its own, which stays with the loop.
    return sum(not each.name.startswith("asyncio") for each in threading.enumerate())


async def main():
    for close in (True, False):
        client = pulsar.Client(
            URL, io_threads=2, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        print(len(await client.get_topic_partitions(TOPIC)), threads())
        producer = await client.create_producer(TOPIC)
        await producer.send(b"one")
        if close:
            await client.close()
        print("closed" if close else "open", threads())


asyncio.run(main())
print("at the end", threads())
