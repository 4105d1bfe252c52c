"""Send and receive records with a JSON schema, which the broker stores.

python examples/typed_schema.py [service_url]
"""

import asyncio
import sys

import pulsar_encore as encore
from pulsar_encore import schema, testing


class Order(schema.Record):
    number = schema.Integer(required=True)
    customer = schema.String(required=True)


async def main(url: str) -> None:
    async with encore.Client(url) as client:
        consumer = await client.subscribe(
            "example-schema", "billing", schema=schema.JsonSchema(Order)
        )
        producer = await client.create_producer("example-schema", schema=schema.JsonSchema(Order))
        await producer.send(Order(number=7, customer="Ada"))

        msg = await consumer.receive()
        order = msg.value()
        print(f"{type(order).__name__} {order.number} of {order.customer}")
        await consumer.acknowledge(msg)

        try:
            await producer.send("not an order")
        except encore.ContentError as error:
            print(f"refused before sending: {type(error).__name__}")


async def start() -> None:
    if len(sys.argv) > 1:
        await main(sys.argv[1])
    else:
        async with testing.broker() as url:
            await main(url)


if __name__ == "__main__":
    asyncio.run(start())
