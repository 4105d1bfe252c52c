"""A message nacked for a while waits for it, also when its process is killed meanwhile.

python examples/durable_nacks.py [service_url]
"""

import asyncio
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from multiprocessing.connection import Connection

import pulsar_encore as encore
from pulsar_encore import testing


async def first_worker(url: str, folder: str, said: Connection) -> None:
    client = encore.Client(url)
    consumer = await client.subscribe(
        "example-durable",
        "worker",
        consumer_type=encore.ConsumerType.Shared,
        initial_position=encore.InitialPosition.Earliest,
        state=encore.RocksState(folder),
    )
    producer = await client.create_producer("example-durable")
    await producer.send(b"the bank is closed")
    msg = await consumer.receive()
    await consumer.negative_acknowledge(msg, delay=2)
    said.send(time.time())
    os.kill(os.getpid(), signal.SIGKILL)  # out of memory, say


def run_first_worker(url: str, folder: str, said: Connection) -> None:
    asyncio.run(first_worker(url, folder, said))


async def main(url: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        hears, said = multiprocessing.Pipe()
        worker = multiprocessing.get_context("spawn").Process(
            target=run_first_worker, args=(str(url), folder, said)
        )
        worker.start()
        await asyncio.to_thread(worker.join)
        nacked_at = hears.recv()
        print("nacked for 2 s by a worker that was killed")

        async with encore.Client(url) as client:
            consumer = await client.subscribe(
                "example-durable",
                "worker",
                consumer_type=encore.ConsumerType.Shared,
                state=encore.RocksState(folder),
            )
            msg = await consumer.receive(timeout=10)
            waited = time.time() - nacked_at
            print(f"{msg.data().decode()!r} came after {waited:.1f} s")
            print(f"at attempt {msg.redelivery_count() + 1}")
            await consumer.acknowledge(msg)


async def start() -> None:
    if len(sys.argv) > 1:
        await main(sys.argv[1])
    else:
        async with testing.broker() as url:
            await main(url)


if __name__ == "__main__":
    asyncio.run(start())
