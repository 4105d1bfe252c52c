"""Await ack receipts, and react to events of the connection.

python examples/receipts_and_events.py [service_url]
"""

import asyncio
import sys

import pulsar_encore as encore
from pulsar_encore import testing

TOPIC = "example-receipts"


def on_event(event: encore.ConsumerEvent) -> None:
    match event:
        case encore.Disconnected():
            print("the connection is lost")
        case encore.Retrying(topic, error, attempts, elapsed):
            # Sent at growing intervals: a good place for an alert.
            print(f"{topic}: {attempts} attempts failed in {elapsed:.0f} s, the last: {error}")
        case encore.Connected():
            print("connected again")
        case encore.Failed(topic, error, component):
            print(f"the {component} of {topic} ended for good: {error}")


async def main(url: str) -> None:
    async with (
        encore.Client(url, transport="native") as client,
        client.subscribe(
            TOPIC, "receipts", ack_receipt_enabled=True, event_listener=on_event
        ) as consumer,
        client.create_producer(TOPIC) as producer,
    ):
        print(f"transport: {consumer.statistics().transport}")
        await producer.send(b"pay", partition_key=b"\xff\x00")  # a binary key
        msg = await consumer.receive()
        print(f"key: {msg.partition_key_bytes()!r}")

        acked = consumer.acknowledge(msg)
        if isinstance(url, testing.BrokerUrl):
            url.broker.drop_connections()  # before the ack is sent
        await acked  # the ack is sent again; this waits for its receipt
        print("the ack receipt has arrived")


async def start() -> None:
    if len(sys.argv) > 1:
        await main(sys.argv[1])
    else:
        async with testing.broker() as url:
            await main(url)


if __name__ == "__main__":
    asyncio.run(start())
