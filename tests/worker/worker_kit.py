"""Helpers for tests of workers: run one until a condition holds, and read its dead letters."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pulsar_encore import BatchWorker, Client, InitialPosition, Message, MessageId, Worker
from pulsar_encore.testing import MemoryTransport

TOPIC = "persistent://public/default/orders"
SUBSCRIPTION = "billing"
DEAD_LETTERS = f"{TOPIC}-{SUBSCRIPTION}-DLQ"


@asynccontextmanager
async def running(
    client: Client, handler: Callable[..., Any], topics: Any = TOPIC, **options: Any
) -> AsyncIterator[Worker]:
    """Run a worker from the earliest message on; at the end it drains."""
    options.setdefault("initial_position", InitialPosition.Earliest)
    async with Worker(client, topics, SUBSCRIPTION, handler, **options) as worker:
        yield worker


@asynccontextmanager
async def running_lists(
    client: Client, handler: Callable[..., Any], topics: Any = TOPIC, **options: Any
) -> AsyncIterator[BatchWorker]:
    """Run a batch worker from the earliest message on; at the end it drains."""
    options.setdefault("initial_position", InitialPosition.Earliest)
    async with BatchWorker(client, topics, SUBSCRIPTION, handler, **options) as worker:
        yield worker


async def until(condition: Callable[[], bool], longest_s: float = 20_000) -> None:
    """Wait in virtual time until a condition holds."""
    async with asyncio.timeout(longest_s):
        while not condition():
            await asyncio.sleep(0.5)


async def all_acked(transport: MemoryTransport, topic: str = TOPIC) -> None:
    await until(lambda: transport.backlog(topic, SUBSCRIPTION) == 0)


def attached(transport: MemoryTransport) -> list[str]:
    """Return the consumers and producers that are attached at the broker, by topic."""
    found = []
    for topic, state in transport.catalogue.topics.items():
        for name, subscription in state.subscriptions.items():
            found += [f"consumer of {name} on {topic}"] * len(subscription.consumers)
        found += [f"producer on {topic}"] * len(state.producers.ready)
    return found


async def letters(client: Client, topic: str = DEAD_LETTERS) -> list[Message]:
    """Return the stored dead letters."""
    found = []
    async with client.create_reader(topic, MessageId.earliest) as reader:
        while await reader.has_message_available():
            found.append(await reader.read_next())
    return found


def copy_disk(path: Path, copy: Path) -> None:
    """Copy a state directory as it is now, which is how a kill would leave it."""
    while True:
        try:
            shutil.copytree(path, copy)
            return
        except shutil.Error:  # RocksDB removed a file meanwhile
            shutil.rmtree(copy)
