"""Redeliver messages that are not acked in time.

python examples/ack_timeout.py [service_url]
"""

import asyncio
import sys

import pulsar_encore as encore
from pulsar_encore import testing


async def main(url: str) -> None:
    async with encore.Client(url) as client:
        consumer = await client.subscribe(
            "example-timeout",
            "worker",
            consumer_type=encore.ConsumerType.Shared,
            unacked_messages_timeout_ms=1000,  # counted from `receive`, not from the prefetch
        )
        producer = await client.create_producer("example-timeout")
        await producer.send(b"forgotten")

        msg = await consumer.receive()
        print(f"{msg.data().decode()} received, but not acked")
        clock = asyncio.get_running_loop().time
        start = clock()
        msg = await consumer.receive(timeout=10)
        print(f"{msg.data().decode()} redelivered after {clock() - start:.1f} s")
        await consumer.acknowledge(msg)


async def start() -> None:
    if len(sys.argv) > 1:
        await main(sys.argv[1])
    else:
        async with testing.broker() as url:
            await main(url)


if __name__ == "__main__":
    asyncio.run(start())
