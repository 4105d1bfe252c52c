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


async def main():
    # asyncio resolves names in a thread, which stays with the loop.
    await asyncio.get_running_loop().getaddrinfo("localhost", 80)
    for close in (True, False):
        client = pulsar.Client(
            URL, io_threads=2, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        print(len(await client.get_topic_partitions(TOPIC)), threading.active_count())
        producer = await client.create_producer(TOPIC)
        await producer.send(b"one")
        if close:
            await client.close()
        print("closed" if close else "open", threading.active_count())


asyncio.run(main())
print("at the end", threading.active_count())
