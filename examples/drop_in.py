"""Run a program for `pulsar-client` with changed imports only.

python examples/drop_in.py [service_url]
"""

import asyncio
import sys

# Was: import pulsar
#      from pulsar.asyncio import Client
import pulsar_encore as pulsar
from pulsar_encore import Client, testing


async def main(url: str) -> None:
    client = Client(url)
    consumer = await client.subscribe(
        "example-drop-in",
        "legacy",
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        negative_ack_redelivery_delay_ms=500,
    )
    producer = await client.create_producer("example-drop-in")
    for number in range(3):
        await producer.send(f"message {number}".encode(), properties={"number": str(number)})

    received = 0
    while received < 3:
        try:
            # With pulsar-client, each timeout here loses a later message.
            msg = await asyncio.wait_for(consumer.receive(), 0.01)
        except TimeoutError:
            continue
        if msg.properties()["number"] == "1" and msg.redelivery_count() == 0:
            await consumer.negative_acknowledge(msg)
            continue
        print(f"{msg.value().decode()}, redelivered {msg.redelivery_count()} times")
        await consumer.acknowledge(msg)
        received += 1
    await consumer.close()
    await client.close()


async def start() -> None:
    if len(sys.argv) > 1:
        await main(sys.argv[1])
    else:
        async with testing.broker() as url:
            await main(url)


if __name__ == "__main__":
    asyncio.run(start())
