"""The Python blocks of `docs/ordering.md` run, in the order that the page promises."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore import Client
from pulsar_encore.testing import MemoryTransport
from tests.harness.pages import blocks_of, run_block

BLOCKS = blocks_of("ordering.md")
IN_ORDER, KEYED_PRODUCER, ONE_TASK, SEVERAL_TASKS, ORDERED_LEASES = BLOCKS

#: (payload, key), as they are published. The handler fails once for "a1".
PUBLISHED = [(b"a1", "a"), (b"b1", "b"), (b"a2", "a"), (b"b2", "b"), (b"a3", "a")]


class Billing:
    def __init__(self) -> None:
        self.done: list[bytes] = []
        self.failed: list[bytes] = []
        self.at_once: dict[int, int] = {}
        self._running: list[bytes] = []
        self.most_at_once = self.most_of_a_key = 0

    async def __call__(self, value: bytes) -> None:
        self._running.append(value)
        self.most_at_once = max(self.most_at_once, len(self._running))
        keys = [each[:1] for each in self._running]
        self.most_of_a_key = max(self.most_of_a_key, *map(keys.count, keys))
        await asyncio.sleep(0.2)
        self._running.remove(value)
        if value == b"a1" and not self.failed:
            self.failed.append(value)
            raise OSError("the bank is closed")
        self.done.append(value)

    def of(self, key: bytes) -> list[bytes]:
        return [each for each in self.done if each.startswith(key)]


@pytest.fixture
def bill() -> Billing:
    return Billing()


@pytest.fixture
def names(client: Client, bill: Billing) -> dict[str, Any]:
    return {"asyncio": asyncio, "bill": bill, "client": client, "encore": encore}


async def run(block: Any, names: dict[str, Any], transport: MemoryTransport) -> None:
    """Run a block for five minutes. The messages are published when it has subscribed."""
    running = asyncio.create_task(run_block(block, names))
    await asyncio.sleep(1)
    for payload, key in PUBLISHED:
        transport.put("orders", payload, key=key)
    with suppress(TimeoutError):
        await asyncio.wait_for(running, 300)
    await asyncio.sleep(1)
    assert transport.backlog("orders", "billing") == 0


async def test_a_worker_keeps_the_order_of_each_key(
    names: dict[str, Any], bill: Billing, transport: MemoryTransport
) -> None:
    asyncio.get_running_loop().call_later(200, lambda: names["worker"].stop())
    await run(IN_ORDER, names, transport)
    assert (bill.of(b"a"), bill.of(b"b")) == ([b"a1", b"a2", b"a3"], [b"b1", b"b2"])
    assert bill.done.index(b"b2") < bill.done.index(b"a1")
    assert bill.most_of_a_key == 1


async def test_batches_by_key_go_to_the_consumer_of_each_key(
    names: dict[str, Any], client: Client
) -> None:
    consumer = await client.subscribe("orders", "billing", encore.ConsumerType.KeyShared)
    await run_block(KEYED_PRODUCER, names)
    assert (await consumer.receive()).key == "customer-7"


@pytest.mark.parametrize("batching", [encore.BatchingType.Default, encore.BatchingType.KeyBased])
async def test_default_batches_bring_a_key_to_two_consumers(
    client: Client, batching: encore.BatchingType
) -> None:
    kind = encore.ConsumerType.KeyShared
    consumers = [await client.subscribe("orders", "billing", kind) for _ in range(2)]
    producer = await client.create_producer("orders", batching_type=batching)
    for first in range(12):
        sends = (producer.send(b"", partition_key=f"k{(first + i) % 12}") for i in range(12))
        await asyncio.gather(*sends)
    keys: list[set[str | None]] = []
    for consumer in consumers:
        keys.append(set())
        with suppress(encore.ReceiveTimeout):
            while True:
                keys[-1].add((await consumer.receive(timeout=1)).key)
    assert bool(keys[0] & keys[1]) == (batching is encore.BatchingType.Default)


async def test_one_task_keeps_the_order_of_the_topic(
    names: dict[str, Any], bill: Billing, transport: MemoryTransport
) -> None:
    await run(ONE_TASK, names, transport)
    assert bill.done == [payload for payload, _ in PUBLISHED]
    assert bill.most_at_once == 1


async def test_several_tasks_share_the_messages(
    names: dict[str, Any], bill: Billing, transport: MemoryTransport
) -> None:
    await run(SEVERAL_TASKS, names, transport)
    assert sorted(bill.done) == sorted(payload for payload, _ in PUBLISHED)
    assert bill.done[-1] == b"a1"
    assert bill.most_at_once == len(PUBLISHED)


async def test_ordered_leases_keep_the_order_of_each_key(
    names: dict[str, Any], bill: Billing, transport: MemoryTransport
) -> None:
    await run(ORDERED_LEASES, names, transport)
    assert (bill.of(b"a"), bill.of(b"b")) == ([b"a1", b"a2", b"a3"], [b"b1", b"b2"])
    assert bill.done.index(b"b2") < bill.done.index(b"a1")
    assert bill.most_of_a_key == 1


@pytest.mark.parametrize(
    ("kind", "held_s", "expected"),
    [
        (encore.ConsumerType.Shared, 0, [b"1", b"2", b"3", b"1"]),
        (encore.ConsumerType.KeyShared, 0, [b"1", b"2", b"3", b"1"]),
        (encore.ConsumerType.Failover, 0, [b"1", b"2", b"3", b"1"]),
        (encore.ConsumerType.Failover, 60, [b"1", b"2", b"1", b"3"]),
    ],
)
async def test_later_messages_overtake_a_nacked_one(
    client: Client,
    transport: MemoryTransport,
    kind: encore.ConsumerType,
    held_s: float,
    expected: list[bytes],
) -> None:
    """A second message that is held at the rewind can still be acked."""
    consumer = await client.subscribe("orders", "billing", kind)
    for payload in (b"1", b"2", b"3"):
        transport.put("orders", payload, key="k")
    received: list[bytes] = []
    with suppress(encore.ReceiveTimeout):
        while True:
            message = await consumer.receive(timeout=60)
            received.append(message.data())
            if len(received) == 1:
                await consumer.negative_acknowledge(message, delay=10)
                continue
            if len(received) == 2:
                await asyncio.sleep(held_s)
            await consumer.acknowledge(message)
    assert received == expected


@pytest.mark.parametrize("kind", [encore.ConsumerType.KeyShared, encore.ConsumerType.Failover])
async def test_a_retry_letter_has_no_order(
    client: Client, transport: MemoryTransport, kind: encore.ConsumerType
) -> None:
    consumer = await client.subscribe("orders", "billing", kind, retry_enable=True)
    for payload in (b"1", b"2", b"3"):
        transport.put("orders", payload, key="k")
    await consumer.reconsume_later(await consumer.receive(), delay=10)
    assert [(await consumer.receive()).data() for _ in range(3)] == [b"2", b"3", b"1"]
