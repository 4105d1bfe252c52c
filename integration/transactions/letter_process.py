"""A consumer that dead-letters every message, to be killed.

    python -m integration.transactions.letter_process '{"url": ..., "topic": ..., "kind": ...}'

It prints one line when it has its first message.
"""

from __future__ import annotations

import asyncio
import json
import sys

from pulsar_encore import (
    Client,
    ConsoleLogger,
    Consumer,
    ConsumerType,
    DeadLetterPolicy,
    EncoreError,
    InitialPosition,
    LoggerLevel,
    Message,
)

#: Between two messages, in s, so that kills hit groups of all sizes.
PAUSE_S = 0.001


async def main(url: str, topic: str, kind: str) -> None:
    policy = DeadLetterPolicy(3, transactional=True)
    async with (
        Client(url, transport="native", logger=ConsoleLogger(LoggerLevel.Error)) as client,
        client.subscribe(
            topic,
            "s",
            ConsumerType[kind],
            initial_position=InitialPosition.Earliest,
            dead_letter_policy=policy,
        ) as consumer,
    ):
        rejecting: set[asyncio.Task[None]] = set()
        has_begun = False
        async for message in consumer:
            if not has_begun:
                print("begun", flush=True)
                has_begun = True
            task = asyncio.create_task(reject(consumer, message))
            rejecting.add(task)
            task.add_done_callback(rejecting.discard)
            await asyncio.sleep(PAUSE_S)


async def reject(consumer: Consumer, message: Message) -> None:
    try:
        await consumer.reject(message, "bad")
    except EncoreError as error:  # the message comes again
        print(f"{message.message_id()!r}: {error!r}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    asyncio.run(main(**json.loads(sys.argv[1])))
