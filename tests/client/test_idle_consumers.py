"""Consumers that nothing comes to cost next to nothing: their threads sleep."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pulsar_encore as encore
from pulsar_encore.devbroker import BrokerThread


def sleep_counts() -> dict[int, int]:
    """How often each receiving thread has gone to sleep so far."""
    counts = {}
    for thread in threading.enumerate():
        if thread.name == "pulsar-encore-pump" and thread.native_id is not None:
            status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
            counts[thread.native_id] = int(
                status.split("\nvoluntary_ctxt_switches:")[1].split("\n")[0]
            )
    return counts


async def test_the_threads_of_idle_consumers_sleep_until_a_message_arrives(
    client: encore.Client, topic: str, broker: BrokerThread
) -> None:
    consumers = [await client.subscribe(f"{topic}-{n}", "s") for n in range(5)]
    waiting = [asyncio.create_task(each.receive()) for each in consumers]
    for _ in range(20):  # a busy machine may wake one now and then; who polls never sleeps so long
        before = sleep_counts()
        await asyncio.sleep(0.6)
        after = sleep_counts()
        assert len(after) == 5
        if after == before:
            break
    else:
        raise AssertionError("no 0.6 s in which every receiving thread slept")
    async with await client.create_producer(f"{topic}-3") as producer, asyncio.timeout(5):
        await producer.send(b"x")
        assert (await waiting[3]).data() == b"x"
        for each in waiting[:3] + waiting[4:]:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        broker.drop_connections()  # while they sleep
        while consumers[0].is_connected():
            await asyncio.sleep(0.01)
        await producer.send(b"y")
        assert (await consumers[3].receive()).data() == b"y"
