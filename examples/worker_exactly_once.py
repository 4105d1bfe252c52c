"""A worker that is stopped at a bad moment: each order still has one invoice.

python examples/worker_exactly_once.py [service_url]
"""

import asyncio
import sys

import pulsar_encore as encore
from pulsar_encore import testing

ORDERS = 200


async def invoice(order: bytes) -> bytes:
    await asyncio.sleep(0.01)
    return b"invoice of " + order


def worker_of(client: encore.Client) -> encore.Worker[bytes]:
    return encore.Worker(
        client,
        "example-orders",
        "invoicing",
        invoice,
        publish="example-invoices",
        transactional=True,
        initial_position=encore.InitialPosition.Earliest,
    )


async def main(url: str) -> None:
    async with encore.Client(url) as client:
        async with client.create_producer("example-orders", batching_enabled=False) as producer:
            await asyncio.gather(*(producer.send(b"%d" % each) for each in range(ORDERS)))
        first = asyncio.ensure_future(worker_of(client).serve())
        await asyncio.sleep(0.15)
        first.cancel()  # some orders are handled, and some invoices are on their way
        await asyncio.wait((first,))
        invoices: list[bytes] = []
        async with worker_of(client):
            reader = await client.create_reader("example-invoices", encore.MessageId.earliest)
            while len(set(invoices)) < ORDERS:
                invoices.append((await reader.read_next(timeout=30)).data())
        while await reader.has_message_available():
            invoices.append((await reader.read_next(timeout=30)).data())
        print(f"{ORDERS} orders, {len(invoices)} invoices, {len(set(invoices))} different ones")


async def start() -> None:
    if len(sys.argv) > 1:
        await main(sys.argv[1])
    else:
        async with testing.broker() as url:
            await main(url)


if __name__ == "__main__":
    asyncio.run(start())
