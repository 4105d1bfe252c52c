"""Keep the delay of a nack when the process is killed.

python examples/durable_nacks.py [service_url]
"""

import asyncio
import os
import signal
import sys
import tempfile
import time

import pulsar_encore as encore
from pulsar_encore import testing

TOPIC = "example-durable"


def subscribe(client: encore.Client, folder: str):
    kind, state = encore.ConsumerType.Shared, encore.RocksState(folder)
    return client.subscribe(TOPIC, "worker", consumer_type=kind, state=state)


async def first_worker(url: str, folder: str) -> None:
    client = encore.Client(url)
    consumer = await subscribe(client, folder)
    producer = await client.create_producer(TOPIC)
    await producer.send(b"the bank is closed")
    msg = await consumer.receive()
    await consumer.negative_acknowledge(msg, delay=2)
    print(time.time(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory runs out


async def main(url: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, url, folder]
        worker = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        nacked_at = float((await worker.communicate())[0])
        print("nacked for 2 s by a worker that was killed")
        async with encore.Client(url) as client, subscribe(client, folder) as consumer:
            msg = await consumer.receive(timeout=10)
            print(f"{msg.data().decode()!r} redelivered after {time.time() - nacked_at:.1f} s")
            print(f"at attempt {msg.redelivery_count() + 1}")
            await consumer.acknowledge(msg)


async def start() -> None:
    if len(sys.argv) > 2:
        await first_worker(*sys.argv[1:])
    elif len(sys.argv) > 1:
        await main(sys.argv[1])
    else:
        async with testing.broker() as url:
            await main(url)


if __name__ == "__main__":
    asyncio.run(start())
