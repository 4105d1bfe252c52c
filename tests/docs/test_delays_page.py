"""The Python blocks of `docs/delays.md` run, and each message comes when the page says."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore import Client, ConsumerType, testing
from pulsar_encore.core.bucket_width import precision_bits
from pulsar_encore.testing import MemoryTransport
from tests.harness.pages import Block, blocks_of, run_block, text_of

PAGE = text_of("delays.md")
PUBLISH, NACK, LETTER, WORKER = blocks_of("delays.md")
EARLIEST = encore.InitialPosition.Earliest
HOUR_S, DAY_S = 3_600, 86_400
TICK_S = 1.5


def now() -> float:
    return asyncio.get_running_loop().time()


async def publish(client: Client, transport: MemoryTransport) -> dict[str, Any]:
    closing = datetime.fromtimestamp(transport.wall_ms() / 1000, UTC) + timedelta(hours=2)
    names: dict[str, Any] = {"client": client, "timedelta": timedelta, "closing": closing}
    await run_block(PUBLISH, names)
    return names


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])
async def test_published_delays_wait_at_the_broker(
    client: Client, transport: MemoryTransport, kind: ConsumerType
) -> None:
    async with client.subscribe("orders", "billing", kind) as consumer:
        began = now()
        await publish(client, transport)
        for expected in (HOUR_S, 2 * HOUR_S):
            message = await consumer.receive()
            assert now() - began == pytest.approx(expected, abs=TICK_S)
            await consumer.acknowledge(message)


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover])
async def test_in_order_published_delays_do_not_wait(
    client: Client, transport: MemoryTransport, kind: ConsumerType
) -> None:
    async with client.subscribe("orders", "billing", kind) as consumer:
        began = now()
        await publish(client, transport)
        assert [(await consumer.receive()).data() for _ in range(2)] == [b"remind", b"close"]
        assert now() - began < TICK_S


@pytest.mark.parametrize(
    ("block", "delay", "late"), [(NACK, 300, 300 / 64), (LETTER, DAY_S, TICK_S)], ids=str
)
async def test_a_loop_delays_its_message(
    client: Client, transport: MemoryTransport, block: Block, delay: float, late: float
) -> None:
    names: dict[str, Any] = {"client": client, "encore": encore, "timedelta": timedelta}
    running = asyncio.create_task(run_block(block, names))
    await asyncio.sleep(1)
    transport.put("orders", b"one")
    await asyncio.sleep(delay - 2)
    unacked = names["consumer"].statistics().unacked
    assert unacked == (1 if block is NACK else 0)  # a retry letter takes no place in the window
    waiting = transport.backlog("orders", "billing")
    assert waiting == (1 if block is NACK else 0)
    await asyncio.sleep(late + 4)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert names["msg"].attempt == 2
    await names["consumer"].close()
    assert transport.backlog("orders", "billing") == 0


async def test_a_retry_of_a_worker_comes_after_its_delay(
    client: Client, transport: MemoryTransport
) -> None:
    names: dict[str, Any] = {"client": client, "encore": encore}
    await run_block(WORKER, names)
    async with names["worker"]:
        await asyncio.sleep(1)
        transport.put("orders", b"one")
        await asyncio.sleep(299)
        assert names["worker"].report().succeeded == 0
        await asyncio.sleep(300 / 64 + 2)
        assert names["worker"].report().succeeded == 1
    assert testing.letters(transport, "orders-billing-RETRY") == []


async def test_a_nack_for_a_second_does_not_wait_behind_a_nack_for_an_hour(
    client: Client, transport: MemoryTransport
) -> None:
    for value in (b"hour", b"second"):
        transport.put("orders", value)
    async with client.subscribe(
        "orders", "billing", ConsumerType.Shared, initial_position=EARLIEST
    ) as consumer:
        for delay in (HOUR_S, 1):
            await consumer.negative_acknowledge(await consumer.receive(), delay=delay)
        began = now()
        assert (await consumer.receive()).data() == b"second"
        assert 1 <= now() - began < 1.1


async def test_the_delay_of_a_nack_is_lost_with_its_consumer(
    client: Client, transport: MemoryTransport
) -> None:
    transport.put("orders", b"one")
    for _ in range(2):
        async with client.subscribe(
            "orders", "billing", ConsumerType.Shared, initial_position=EARLIEST
        ) as consumer:
            began = now()
            message = await consumer.receive()
            assert now() - began < 1
            await consumer.negative_acknowledge(message, delay=HOUR_S)


def test_the_longest_delays_of_the_page() -> None:
    with pytest.raises(encore.ConfigurationError, match="delay"):
        encore.Retry(delay=2e9)
    assert "up to 33 s late" in PAGE
    assert 2 ** precision_bits(HOUR_S * 1000) <= 33_000
