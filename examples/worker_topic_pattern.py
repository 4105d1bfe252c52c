"""Read a list of topics with one handler, and all topics that match a pattern with another.

python examples/worker_topic_pattern.py [service_url]
"""

import asyncio
import re
import sys

import pulsar_encore as encore
from pulsar_encore import testing

seen: asyncio.Queue[str] = asyncio.Queue()


async def listed(order: bytes, msg: encore.Message[bytes]) -> None:
    seen.put_nowait(f"list: {order.decode()} of {msg.topic_name().rpartition('/')[2]}")


async def matched(order: bytes, msg: encore.Message[bytes]) -> None:
    seen.put_nowait(f"pattern: {order.decode()} of {msg.topic_name().rpartition('/')[2]}")


async def main(url: str) -> None:
    first = encore.InitialPosition.Earliest
    async with encore.Client(url) as client:
        for topic in ("example-shop-de", "example-shop-fr", "example-till"):
            await (await client.create_producer(topic)).send(b"an order")

        # Messages of a higher number start first. A list has no priorities.
        priorities = {"example-till": 1, "example-shop-de": 0}
        pattern = re.compile("example-shop-.*")
        async with (
            encore.Worker(client, priorities, "list", listed, initial_position=first),
            encore.Worker(client, pattern, "pattern", matched, initial_position=first),
        ):
            # A topic that is new and matches the pattern is read from its first message on.
            await (await client.create_producer("example-shop-it")).send(b"an order")
            print(*sorted([await seen.get() for _ in range(5)]), sep="\n")


async def start() -> None:
    if len(sys.argv) > 1:
        await main(sys.argv[1])
    else:
        async with testing.broker() as url:
            await main(url)


if __name__ == "__main__":
    asyncio.run(start())
