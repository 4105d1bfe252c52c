"""Nack single messages of a batch, each with its own delay.

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
        # The three messages are sent in one batch, which is one entry for the broker.
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
            print(f"{msg.data().decode()} redelivered after {clock() - start:.1f} s")
            await consumer.acknowledge(msg)
        try:
            await consumer.receive(timeout=0.2)
        except encore.ReceiveTimeout:
            print("the acked message was not redelivered")


async def start() -> None:
    if len(sys.argv) > 1:
        await main(sys.argv[1])
    else:
        async with testing.broker() as url:
            await main(url)


if __name__ == "__main__":
    asyncio.run(start())
