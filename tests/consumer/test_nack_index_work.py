"""The thread and the timer of `nack_index`: slow writes, work that fails, an end that fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from consumer_kit import TOPIC, parts_of, put_numbers, receive_all, receive_n

from pulsar_encore import Client, Consumer, ConsumerType, InitialPosition, SpillingNackIndex
from pulsar_encore.state import DirectoryBlobs, SpillingIndex
from pulsar_encore.testing import MemoryTransport

HOUR = 3600.0


class SlowDisk:
    """A disk on which a write has begun and does not end before `let_go`."""

    def __init__(self) -> None:
        self.writing = Event()
        self.was_let_go = True  # False: the caller of `let_go` waited for the write
        self._go_on = Event()

    def let_go(self) -> None:
        self._go_on.set()

    def wait(self) -> None:
        self.writing.set()
        self.was_let_go = self._go_on.wait(5)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    found = SlowDisk()
    create = DirectoryBlobs.create

    def slow(self: DirectoryBlobs, generation: int) -> object:
        found.wait()
        return create(self, generation)

    monkeypatch.setattr(DirectoryBlobs, "create", slow)
    yield found
    found.let_go()


async def subscribe(client: Client, path: Path, topic: str = TOPIC) -> Consumer:
    return await client.subscribe(
        topic,
        "s",
        ConsumerType.Shared,
        initial_position=InitialPosition.Earliest,
        nack_index=SpillingNackIndex(path, min_index_count_per_bucket=100),
    )


async def nack_all(consumer: Consumer, count: int) -> None:
    for message in await receive_n(consumer, count):
        await consumer.negative_acknowledge(message, delay=HOUR)


async def until(so: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if so():
            return
        time.sleep(0.001)
        await asyncio.sleep(0.01)
    raise AssertionError("not in 100 virtual seconds")


async def test_close_does_not_block_the_loop_during_a_write(
    transport: MemoryTransport, client: Client, tmp_path: Path, disk: SlowDisk
) -> None:
    put_numbers(transport, 300)
    consumer = await subscribe(client, tmp_path)
    await nack_all(consumer, 300)
    await until(disk.writing.is_set)
    asyncio.get_running_loop().call_later(1, disk.let_go)
    await consumer.close()
    assert disk.was_let_go
    assert not list(tmp_path.glob("spilled-*"))


async def test_a_rewind_does_not_block_the_loop_during_a_write(
    transport: MemoryTransport, client: Client, tmp_path: Path, disk: SlowDisk
) -> None:
    put_numbers(transport, 300)
    consumer = await subscribe(client, tmp_path)
    await nack_all(consumer, 300)
    await until(disk.writing.is_set)
    consumer.redeliver_unacknowledged_messages()
    disk.let_go()
    assert len(await receive_all(consumer)) == 300
    assert disk.was_let_go
    assert consumer.statistics().nacked == 0
    await consumer.close()
    assert not list(tmp_path.glob("spilled-*"))


async def test_failed_maintenance_is_reported_once_and_retried_while_other_topics_go_on(
    transport: MemoryTransport,
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    disk: SlowDisk,
) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    transport.catalogue.create_partitioned("parts", 2)
    consumer = await subscribe(client, tmp_path, "parts")
    spilling = parts_of(consumer).spilling
    assert spilling is not None
    indexes = spilling._indexes
    maintain = SpillingIndex.maintain
    broken = False

    def fails(self: SpillingIndex) -> bool:
        if broken and self is indexes[0]:
            raise RuntimeError("a bug")
        return maintain(self)

    monkeypatch.setattr(SpillingIndex, "maintain", fails)
    for partition in range(2):
        for each in range(120):
            transport.put(f"persistent://public/default/parts-partition-{partition}", b"%d" % each)
    await nack_all(consumer, 240)
    await until(disk.writing.is_set)
    assert indexes[0]._tasks and indexes[1]._tasks
    broken = True
    disk.let_go()
    await until(lambda: bool(reported) and not indexes[1]._tasks)
    assert "a bug" in str(reported[0]["exception"])
    await asyncio.sleep(30)
    assert len(reported) == 1, "not each 5 ms"
    broken = False
    await until(lambda: not indexes[0]._tasks)
    await consumer.close()


async def test_an_index_that_fails_to_close_leaves_no_thread_and_no_directory(
    transport: MemoryTransport,
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transport.catalogue.create_partitioned("parts", 2)
    consumer = await subscribe(client, tmp_path, "parts")
    for partition in range(2):
        transport.put(f"persistent://public/default/parts-partition-{partition}", b"")
    await nack_all(consumer, 2)
    spilling = parts_of(consumer).spilling
    assert spilling is not None
    first, second = spilling._indexes

    def fails() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(first, "close", fails)
    with pytest.raises(RuntimeError, match="a bug"):
        await consumer.close()
    assert second._closed
    assert spilling._executor._shutdown
    assert not list(tmp_path.glob("spilled-*"))
