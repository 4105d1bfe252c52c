"""Ordered leases hold a bounded number of bytes behind keys that stand still."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from consumer_kit import TOPIC, parts_of, settle

from pulsar_encore import Client, Consumer, ConsumerType, InitialPosition
from pulsar_encore.consumer.leases import key_queues as key_queues_module
from pulsar_encore.testing import MemoryTransport

SIZE = 1_000
MOST = 3 * SIZE


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_queues_module, "_MAX_BYTES", MOST)


def put(transport: MemoryTransport, key: str, *numbers: int, size: int = SIZE) -> None:
    for number in numbers:
        transport.put(TOPIC, b"%s:%4d" % (key.encode(), number) + bytes(size - 6), key=key)


async def subscribed(client: Client, **options: Any) -> Consumer:
    return await client.subscribe(
        TOPIC,
        "s",
        ConsumerType.KeyShared,
        initial_position=InitialPosition.Earliest,
        ordered_leases=True,
        **options,
    )


def key_queues_of(consumer: Any) -> Any:
    return parts_of(consumer).popping._key_queues


def waiting_bytes(consumer: Any) -> int:
    key_queues = key_queues_of(consumer)
    found = sum(
        item[2].length()
        for key_queue in (*key_queues._key_queues.values(), *key_queues._keyless)
        for item in list(key_queue.items)[int(key_queue.out) :]
    )
    assert key_queues._bytes == found
    return found


def text(lease: Any) -> str:
    return bytes(lease.message.data()[:6]).decode().replace(" ", "")


async def pop_all(consumer: Any, most: int = 32) -> list[Any]:
    found = []
    while leases := await consumer.pop(most, lease=1000, wait=0.1, max_per_key=1):
        found += leases
        waiting_bytes(consumer)
    return found


async def test_messages_waiting_behind_a_lease_use_no_more_bytes_than_the_limit() -> None:
    transport = MemoryTransport()
    put(transport, "a", *range(40))
    async with (
        Client("memory://", transport=transport) as client,
        await subscribed(client) as consumer,
    ):
        (first,) = await pop_all(consumer)
        assert waiting_bytes(consumer) <= MOST
        assert consumer.statistics().queued >= 36
        order = [text(first)]
        await first.ack()
        while leases := await consumer.pop(32, lease=1000, wait=1, max_per_key=1):
            (lease,) = leases
            order.append(text(lease))
            assert waiting_bytes(consumer) <= MOST
            await lease.ack()
        assert order == [f"a:{number}" for number in range(40)]
        assert waiting_bytes(consumer) == 0


async def test_leased_messages_of_many_keys_do_not_count_towards_the_byte_limit() -> None:
    transport = MemoryTransport()
    for key in "abcdefghij":
        put(transport, key, 0)
    async with (
        Client("memory://", transport=transport) as client,
        await subscribed(client) as consumer,
    ):
        leases = await pop_all(consumer)
        assert len(leases) == 10
        for lease in leases:
            await lease.nack(delay=0)
        waiting_bytes(consumer)
        assert len(await pop_all(consumer)) == 10


async def test_a_key_goes_on_while_another_key_fills_the_byte_limit() -> None:
    transport = MemoryTransport()
    put(transport, "b", 0, 1)
    put(transport, "a", *range(10))
    async with (
        Client("memory://", transport=transport) as client,
        await subscribed(client) as consumer,
    ):
        leases = {text(each): each for each in await pop_all(consumer)}
        assert set(leases) == {"a:0", "b:0"}
        await leases["b:0"].ack()
        assert [text(each) for each in await pop_all(consumer)] == ["b:1"]


async def test_a_pop_that_waits_at_the_byte_limit_gets_the_next_message_when_bytes_are_free(
    caplog: pytest.LogCaptureFixture,
) -> None:
    transport = MemoryTransport()
    put(transport, "a", *range(4))
    put(transport, "b", 0)
    async with (
        Client("memory://", transport=transport) as client,
        await subscribed(client) as consumer,
    ):
        with caplog.at_level(logging.WARNING):
            (first,) = await pop_all(consumer)
            popping = asyncio.create_task(consumer.pop(10, lease=1000, wait=50, max_per_key=1))
            await settle()
        assert "max_leases" in caplog.text
        # The messages behind the lease are acked by their ids, so that no key queue is ready.
        message_id = first.message.message_id()
        for number in range(1, 4):
            await consumer.acknowledge(
                type(message_id)(
                    -1, message_id.ledger_id(), message_id.entry_id() + number, topic=TOPIC
                )
            )
        await first.ack()
        assert [text(each) for each in await popping] == ["b:0"]


async def test_waiting_bytes_are_counted_correctly_over_a_lost_connection() -> None:
    transport = MemoryTransport()
    put(transport, "a", *range(6))
    put(transport, "b", *range(3))
    async with (
        Client("memory://", transport=transport) as client,
        await subscribed(client) as consumer,
    ):
        leases = await pop_all(consumer)
        transport.disconnect()
        await settle()
        waiting_bytes(consumer)
        transport.reconnect()
        await settle()
        order: dict[str, list[str]] = {"a": [], "b": []}
        for _ in range(20):
            for lease in leases:
                order[text(lease)[0]].append(text(lease)[2:])
                await lease.ack()
            waiting_bytes(consumer)
            leases = await pop_all(consumer)
        assert order == {"a": list("012345"), "b": list("012")}
        assert waiting_bytes(consumer) == 0
