"""Test a consumer on a development broker that drops its connection.

python examples/testing_a_consumer.py [service_url]
"""

import asyncio
import sys

import pulsar_encore as encore
from pulsar_encore import testing


async def take(consumer: encore.Consumer) -> bytes:
    """The code under test: receive one message and ack it."""
    msg = await consumer.receive(timeout=10)
    await consumer.acknowledge(msg)
    return msg.data()


async def main(url: str) -> None:
    async with encore.Client(url) as client:
        consumer = await client.subscribe("example-test", "tested")
        producer = await client.create_producer("example-test")
        await producer.send(b"one")
        assert await take(consumer) == b"one"
        print("received one")

        if not isinstance(url, testing.BrokerUrl):
            return  # a real broker: this test cannot drop its connections
        dropped = url.broker.drop_connections()
        print("the connection was dropped" if dropped else "there was no connection")
        await producer.send(b"two")
        assert await take(consumer) == b"two"
        print("received two")

    # The broker records all commands, and knows the backlog of each subscription.
    assert url.broker.recorded("ACK", "in")
    assert url.broker.backlog("persistent://public/default/example-test", "tested") == 0
    print("both were acked")


async def start() -> None:
    if len(sys.argv) > 1:
        await main(sys.argv[1])
    else:
        async with testing.broker() as url:
            await main(url)


if __name__ == "__main__":
    asyncio.run(start())
