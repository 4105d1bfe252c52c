"""A consumer process to be killed: `python -m tests.harness.contract.crash_process URL TOPIC ENGINE
MODE`.

Prints the payload of each message. Mode `settle` nacks every third message, and prints the others
after acking them. Mode `hold` settles nothing.
"""

from __future__ import annotations

import asyncio
import sys

from .cluster import ENGINES
from .contract_kit import subscribe


async def main(url: str, topic: str, engine_name: str, mode: str) -> None:
    [engine] = [each for each in ENGINES if each.name == engine_name]
    async with engine.client(url) as client:
        consumer = await subscribe(client, topic)
        number = 0
        async for message in consumer:
            number += 1
            if mode == "settle" and number % 3 == 0:
                await consumer.negative_acknowledge(message, delay=60)
                continue
            if mode == "settle":
                await consumer.acknowledge(message)
            sys.stdout.write(message.data().decode() + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
