"""A transaction of one message is small work for the event loop: tasks and timers are counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any

from pulsar_encore import Client, ConsumerType, InitialPosition
from pulsar_encore.testing import MemoryTransport, run

# begin, two registrations, the ack, the commit
TASKS = 5
BROKER = "pulsar_encore.testing."  # it runs on the same event loop
# One for each of the five requests, and one for the deadline.
TIMERS = 6


def test_a_transaction_of_one_message_needs_few_tasks_and_timers() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        tasks: Counter[str] = Counter()
        timers: Counter[str] = Counter()
        call_at = loop.call_at

        def make_task(
            of: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any
        ) -> asyncio.Task[Any]:
            tasks[work.__qualname__] += 1
            return asyncio.Task(work, loop=of, **options)

        def note_timer(when: float, callback: Any, *args: Any, **options: Any) -> Any:
            timers[callback.__qualname__] += not callback.__module__.startswith(BROKER)
            return call_at(when, callback, *args, **options)

        async with (
            Client("pulsar://memory:6650", transport=MemoryTransport()) as client,
            client.create_producer("out", batching_enabled=False) as producer,
            client.create_producer("in", batching_enabled=False) as filling,
            client.subscribe(
                *("in", "s", ConsumerType.Exclusive), initial_position=InitialPosition.Earliest
            ) as consumer,
        ):

            async def one() -> None:
                message = await consumer.receive()
                async with client.transaction() as txn:
                    await producer.send(message.data(), txn=txn)
                    await consumer.acknowledge(message, txn=txn)

            await filling.send(b"1")
            await filling.send(b"2")
            await one()  # the first one connects to the coordinator
            await asyncio.sleep(1)
            loop.set_task_factory(make_task)
            loop.call_at = note_timer  # type: ignore[method-assign, assignment]
            await one()
            loop.set_task_factory(None)
            loop.call_at = call_at  # type: ignore[method-assign]
        assert tasks.total() <= TASKS, tasks
        assert timers.total() <= TIMERS, timers

    run(main())
