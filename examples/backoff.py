"""Nack with delays that grow with each failed attempt.

python examples/backoff.py [service_url]
"""

import asyncio
import sys

import pulsar_encore as encore
from pulsar_encore import testing


async def main(url: str) -> None:
    async with encore.Client(url) as client:
        consumer = await client.subscribe(
            "example-backoff",
            "worker",
            consumer_type=encore.ConsumerType.Shared,
            negative_ack_redelivery_backoff=encore.Backoff(min_delay=0.2, max_delay=60),
        )
        producer = await client.create_producer("example-backoff")
        await producer.send(b"stubborn")

        clock = asyncio.get_running_loop().time
        last = clock()
        for attempt in range(1, 5):
            msg = await consumer.receive(timeout=10)
            print(f"attempt {attempt} after {clock() - last:.1f} s")
            last = clock()
            if attempt < 4:
                await consumer.negative_acknowledge(msg)
            else:
                await consumer.acknowledge(msg)


async def start() -> None:
    if len(sys.argv) > 1:
        await main(sys.argv[1])
    else:
        async with testing.broker() as url:
            await main(url)


if __name__ == "__main__":
    asyncio.run(start())
