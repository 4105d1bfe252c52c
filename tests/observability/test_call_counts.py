"""Without observers, a message costs as many Python calls as before there were observers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pulsar_encore as encore
from pulsar_encore import Client, ConsumerType
from pulsar_encore.testing import MemoryTransport

MESSAGES = 200
# Python calls of this package for a message, recorded with CPython 3.11 on the commit before
# observers. Newer versions inline comprehensions, so they may need fewer. A worker needs three more
# since then, because the transport's message is made when it is first read.
RECEIVE_AND_ACK = 8.015
WORKER = 66.05
SEND = 13.0


class Calls:
    count = 0


@contextmanager
def counted() -> Iterator[Calls]:
    """Count the calls of Python functions of this package. Steps of a coroutine count too."""
    calls = Calls()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and "pulsar_encore" in frame.f_code.co_filename:
            path = frame.f_code.co_filename.rsplit("pulsar_encore/", 1)[1]
            # The broker in memory and its connection are no cost of a client's message.
            calls.count += path.startswith(("consumer", "worker", "producer", "message", "core"))

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)


async def per_message(run: Callable[[int], Awaitable[int]]) -> float:
    """Return the calls of one more message: the start and the end of a run cost the same."""
    few, many = await run(MESSAGES), await run(2 * MESSAGES)
    return (many - few) / MESSAGES


async def test_receive_and_ack(transport: MemoryTransport) -> None:
    async with Client("memory://", transport=transport) as client:
        consumer = await client.subscribe("jobs", "worker", ConsumerType.Shared)

        async def run(count: int) -> int:
            for _ in range(count):
                transport.put("jobs", b"one")
            await asyncio.sleep(1)
            with counted() as calls:
                for _ in range(count):
                    await consumer.acknowledge(await consumer.receive())
            await asyncio.sleep(1)
            return calls.count

        assert await per_message(run) <= RECEIVE_AND_ACK


async def test_a_worker(transport: MemoryTransport) -> None:
    async with Client("memory://", transport=transport) as client:

        async def run(count: int) -> int:
            left = count

            async def handler(value: bytes) -> None:
                nonlocal left
                left -= 1

            async with encore.Worker(client, f"jobs-{count}", "worker", handler) as worker:
                worker.pause()
                for _ in range(count):
                    transport.put(f"jobs-{count}", b"one")
                await asyncio.sleep(1)
                with counted() as calls:
                    worker.resume()
                    while left:
                        await asyncio.sleep(0)
            return calls.count

        assert await per_message(run) <= WORKER


async def test_send(transport: MemoryTransport) -> None:
    async with Client("memory://", transport=transport) as client:
        async with client.create_producer("jobs", batching_enabled=False) as producer:

            async def run(count: int) -> int:
                with counted() as calls:
                    for _ in range(count):
                        await producer.send(b"one", {"a": "b"})
                return calls.count

            assert await per_message(run) <= SEND
