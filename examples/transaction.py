"""Send to two topics in one transaction: both messages appear, or neither.

python examples/transaction.py [service_url]
"""

import asyncio
import sys

import pulsar_encore as encore
from pulsar_encore import testing

PRICES = {"chair": 40, "table": 250}


async def order(
    client: encore.Client, orders: encore.Producer, invoices: encore.Producer, item: str
) -> None:
    async with client.transaction(timeout=10) as txn:
        await orders.send(item.encode(), txn=txn)
        price = PRICES[item]  # a KeyError aborts: no order without an invoice
        await invoices.send(f"{price} for a {item}".encode(), txn=txn)


async def main(url: str) -> None:
    async with encore.Client(url) as client:
        orders = await client.create_producer("example-orders")
        invoices = await client.create_producer("example-invoices")
        for item in ("chair", "lamp", "table"):
            try:
                await order(client, orders, invoices, item)
            except KeyError:
                print(f"no price for a {item}")
        for topic in ("example-orders", "example-invoices"):
            async with client.create_reader(topic, encore.MessageId.earliest) as reader:
                while await reader.has_message_available():
                    print(f"{topic}: {(await reader.read_next()).data().decode()}")


async def start() -> None:
    if len(sys.argv) > 1:
        await main(sys.argv[1])
    else:
        async with testing.broker() as url:
            await main(url)


if __name__ == "__main__":
    asyncio.run(start())
