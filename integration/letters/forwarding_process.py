"""A consumer that forwards every message until it is dead-lettered, in a process that can be
killed.

Prints "up" when the first message arrives. Prints "idle" and ends after 3 s without a message.

    python -m integration.letters.forwarding_process URL TOPIC SUBSCRIPTION MAX
"""

from __future__ import annotations

import asyncio
import sys

import pulsar_encore as encore

CONCURRENCY = 200
IDLE_S = 3.0


async def main(url: str, topic: str, subscription: str, most: int) -> None:
    """Forward messages until none arrives."""
    quiet = encore.ConsoleLogger(encore.LoggerLevel.Error)
    async with (
        encore.Client(url, transport="stock", logger=quiet) as client,
        await client.subscribe(
            topic,
            subscription,
            consumer_type=encore.ConsumerType.Shared,
            initial_position=encore.InitialPosition.Earliest,
            dead_letter_policy=encore.DeadLetterPolicy(most),
            retry_enable=True,
        ) as consumer,
    ):
        is_up = False

        async def worker() -> None:
            nonlocal is_up
            while True:
                try:
                    message = await consumer.receive(timeout=IDLE_S)
                except encore.ReceiveTimeout:
                    return
                if not is_up:
                    is_up = True
                    print("up", flush=True)
                await consumer.reconsume_later(message)

        await asyncio.gather(*(worker() for _ in range(CONCURRENCY)))
    print("idle", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
