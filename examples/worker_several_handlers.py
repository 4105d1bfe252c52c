"""Read several topics with a handler each: two workers, and one call that runs and drains both.

python examples/worker_several_handlers.py [service_url]
"""

import asyncio
import signal
import sys

import pulsar_encore as encore
from pulsar_encore import testing

done: list[bytes] = []


async def bill(order: bytes) -> None:
    print(f"billed {order.decode()}")
    end_of_demo(order)


async def pay_back(refund: bytes) -> None:
    print(f"paid back {refund.decode()}")
    end_of_demo(refund)


def end_of_demo(value: bytes) -> None:
    done.append(value)
    if len(done) == 3:
        signal.raise_signal(signal.SIGTERM)  # as a supervisor ends the program


async def main(url: str) -> None:
    first = encore.InitialPosition.Earliest  # where a new subscription begins
    async with encore.Client(url) as client:
        for topic, value in (("orders", b"Ada"), ("orders", b"Grace"), ("refunds", b"Edsger")):
            await (await client.create_producer(f"example-{topic}")).send(value)

        orders = encore.Worker(client, "example-orders", "shop", bill, initial_position=first)
        refunds = encore.Worker(client, "example-refunds", "shop", pay_back, initial_position=first)
        for report in await encore.run(orders, refunds):
            print(f"{report.name}: {report.succeeded} succeeded")


async def start() -> None:
    if len(sys.argv) > 1:
        await main(sys.argv[1])
    else:
        async with testing.broker() as url:
            await main(url)


if __name__ == "__main__":
    asyncio.run(start())
