"""Ack a message from elsewhere: the handler detaches it, and a callback acks it by its handle.

python examples/worker_manual_ack.py [service_url]
"""

import asyncio
import sys

import pulsar_encore as encore
from pulsar_encore import testing

jobs: asyncio.Queue[tuple[str, str]] = asyncio.Queue()  # another system works on these


async def submit(document: bytes, msg: encore.Message[bytes]) -> None:
    lease = msg.detach(lease=3600)  # if nobody acks it for an hour, the message is redelivered
    await jobs.put((lease.handle, document.decode()))  # the handle is text
    print(f"{document.decode()} is submitted")


async def on_callback(worker: encore.Worker, handle: str) -> None:
    """The other system calls this when it is done."""
    lease = await worker.consumer.lease(handle)
    await lease.ack()


async def main(url: str) -> None:
    async with encore.Client(url) as client:
        producer = await client.create_producer("example-documents")
        await producer.send(b"a scanned page")
        async with encore.Worker(
            client,
            "example-documents",
            "ocr",
            submit,
            initial_position=encore.InitialPosition.Earliest,
        ) as worker:
            handle, document = await jobs.get()
            print(f"handlers that run: {worker.health().running}")
            await on_callback(worker, handle)
            print(f"{document} is acked")

    if isinstance(url, testing.BrokerUrl):
        backlog = url.broker.backlog("persistent://public/default/example-documents", "ocr")
        print(f"backlog: {backlog}")


async def start() -> None:
    if len(sys.argv) > 1:
        await main(sys.argv[1])
    else:
        async with testing.broker() as url:
            await main(url)


if __name__ == "__main__":
    asyncio.run(start())
