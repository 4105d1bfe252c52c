"""Call a function for each message. An exception nacks the message.

python examples/listener.py [service_url]
"""

import asyncio
import logging
import sys

import pulsar_encore as encore
from pulsar_encore import testing


async def main(url: str) -> None:
    done = asyncio.Event()

    async def greet(consumer: encore.Consumer, msg: encore.Message) -> None:
        name = msg.data().decode()
        if name == "Grace" and msg.redelivery_count() == 0:
            raise ValueError("not yet")
        print(f"hello {name}")
        await consumer.acknowledge(msg)
        if name == "Grace":
            done.set()

    # Exceptions of a listener are logged with their traceback, to Python's logging.
    logging.basicConfig(level=logging.CRITICAL)
    async with encore.Client(url) as client:
        await client.subscribe(
            "example-listener",
            "greeter",
            consumer_type=encore.ConsumerType.Shared,
            message_listener=greet,
            negative_ack_redelivery_delay_ms=300,
        )
        producer = await client.create_producer("example-listener")
        for name in ("Ada", "Grace", "Edsger"):
            await producer.send(name.encode())
        await done.wait()


async def start() -> None:
    if len(sys.argv) > 1:
        await main(sys.argv[1])
    else:
        async with testing.broker() as url:
            await main(url)


if __name__ == "__main__":
    asyncio.run(start())
