"""A delay for each message, also for messages of one batch.

python examples/nack_delays.py [service_url]
"""

import asyncio
import sys

import pulsar_encore as encore
from pulsar_encore import testing


async def main(url: str) -> None:
    async with encore.Client(url) as client:
        consumer = await client.subscribe(
            "example-delays", "worker", consumer_type=encore.ConsumerType.Shared
        )
        # Sent together, the three travel in one batch, which the broker knows as one entry.
        producer = await client.create_producer("example-delays")
        await asyncio.gather(*(producer.send(word) for word in (b"slow", b"done", b"fast")))

        clock = asyncio.get_running_loop().time
        start = clock()
        for _ in range(3):
            msg = await consumer.receive()
            if msg.data() == b"done":
                await consumer.acknowledge(msg)
            else:
                delay = 1.0 if msg.data() == b"slow" else 0.4
                await consumer.negative_acknowledge(msg, delay=delay)

        for _ in range(2):
            msg = await consumer.receive(timeout=5)
            print(f"{msg.data().decode()} came back after {clock() - start:.1f} s")
            await consumer.acknowledge(msg)
        try:
            await consumer.receive(timeout=0.2)
        except encore.ReceiveTimeout:
            print("what was done did not come back")


async def start() -> None:
    if len(sys.argv) > 1:
        await main(sys.argv[1])
    else:
        async with testing.broker() as url:
            await main(url)


if __name__ == "__main__":
    asyncio.run(start())
