"""Receive messages, and ack them, or nack them if the work fails.

python examples/consume_and_settle.py [service_url]
"""

import asyncio
import sys

import pulsar_encore as encore
from pulsar_encore import testing


class Busy(Exception):
    """The billing service is overloaded."""


async def bill(order: str, attempt: int) -> None:
    if order == "order-1" and attempt == 1:
        raise Busy
    print(f"billed {order} at attempt {attempt}")


async def main(url: str) -> None:
    async with encore.Client(url) as client:
        consumer = await client.subscribe(
            "example-settle", "billing", consumer_type=encore.ConsumerType.Shared
        )
        producer = await client.create_producer("example-settle")
        for number in range(3):
            await producer.send(f"order-{number}".encode())

        billed = 0
        async for msg in consumer:
            order = msg.data().decode()
            try:
                await bill(order, msg.redelivery_count() + 1)
            except Busy:
                print(f"{order} will be redelivered")
                await consumer.negative_acknowledge(msg, delay=0.3)
            else:
                await consumer.acknowledge(msg)
                billed += 1
            if billed == 3:
                break


async def start() -> None:
    if len(sys.argv) > 1:
        await main(sys.argv[1])
    else:
        async with testing.broker() as url:
            await main(url)


if __name__ == "__main__":
    asyncio.run(start())
