"""Roll out a worker on a Failover subscription: the next process takes over, and order is kept.

python examples/worker_rollout.py [service_url]
"""

import asyncio
import sys

import pulsar_encore as encore
from pulsar_encore import testing

seen: asyncio.Queue[tuple[str, int]] = asyncio.Queue()


def make_worker(client: encore.Client, version: str) -> encore.Worker:
    async def book(entry: bytes) -> None:
        await asyncio.sleep(0.02)
        seen.put_nowait((version, int(entry)))

    return encore.Worker(
        client,
        "example-ledger",
        "booking",
        book,
        order="partition",
        initial_position=encore.InitialPosition.Earliest,
        name=f"booking {version}",
    )


async def main(url: str) -> None:
    async with encore.Client(url) as client:
        producer = await client.create_producer("example-ledger")
        for number in range(50):
            await producer.send(b"%d" % number)

        old, new = make_worker(client, "1.0"), make_worker(client, "1.1")
        running = asyncio.create_task(encore.run(old))
        booked = [await seen.get() for _ in range(10)]
        async with new:  # on standby, because a partition has one active consumer
            old.stop()  # as SIGTERM does: it ends its handler and gives the other messages back
            report = await running
            booked += [await seen.get() for _ in range(40)]

    print(f"1.0 has drained: {report.abandoned} handlers left behind")
    print("in order, each once:", [number for _, number in booked] == list(range(50)))
    print(f"both versions worked: {len({version for version, _ in booked}) == 2}")


async def start() -> None:
    if len(sys.argv) > 1:
        await main(sys.argv[1])
    else:
        async with testing.broker() as url:
            await main(url)


if __name__ == "__main__":
    asyncio.run(start())
