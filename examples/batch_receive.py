"""Receive messages in lists, and ack a whole list.

python examples/batch_receive.py [service_url]
"""

import asyncio
import sys

import pulsar_encore as encore
from pulsar_encore import testing


async def main(url: str) -> None:
    async with encore.Client(url) as client:
        consumer = await client.subscribe(
            "example-batch",
            "loader",
            consumer_type=encore.ConsumerType.Shared,
            batch_receive_policy=encore.BatchReceivePolicy(max_num_message=40, timeout_ms=500),
        )
        producer = await client.create_producer("example-batch")
        await asyncio.gather(*(producer.send(f"row {number}".encode()) for number in range(100)))

        rows = 0
        while rows < 100:
            messages = await consumer.batch_receive()
            await consumer.acknowledge(messages)
            rows += len(messages)
            print(f"stored {len(messages)} rows")
        print(f"{rows} rows in total")


async def start() -> None:
    if len(sys.argv) > 1:
        await main(sys.argv[1])
    else:
        async with testing.broker() as url:
            await main(url)


if __name__ == "__main__":
    asyncio.run(start())
