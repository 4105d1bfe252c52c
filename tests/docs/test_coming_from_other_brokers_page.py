"""The Python blocks of `docs/coming-from-other-brokers.md` run; those of other systems compile.

`test_pub_sub_program.py` runs the block with threads.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore import Client, testing
from pulsar_encore.testing import MemoryTransport
from tests.harness.pages import Block, blocks_of, compiled, run_block

PAGE = "coming-from-other-brokers.md"
BLOCKS = {each.title: each for each in blocks_of(PAGE)}
DLQ = "orders-billing-DLQ"


@dataclass
class Order:
    total: int


@pytest.fixture
def names(client: Client) -> dict[str, Any]:
    return {"client": client, "encore": encore, "Order": Order}


async def run(block: Block, names: dict[str, Any], seconds: float) -> None:
    """Run a program for so long. A worker is stopped, as by a signal."""
    loop = asyncio.get_running_loop()
    if "Worker" in block.code:
        loop.call_later(seconds - 60, lambda: names["worker"].stop())
    with suppress(TimeoutError):
        await asyncio.wait_for(run_block(block, names), seconds)
    await asyncio.sleep(1)


async def test_a_program_of_kafka(names: dict[str, Any], transport: MemoryTransport) -> None:
    calls: list[tuple[int, float]] = []

    async def bill(order: Order) -> None:
        calls.append((order.total, asyncio.get_running_loop().time()))
        if order.total < 0:
            raise OSError

    for total in (-1, 5):
        transport.put("orders", json.dumps({"total": total}).encode())
    await run(BLOCKS["Kafka"], names | {"bill": bill}, 300)
    assert [total for total, _ in calls] == [-1, -1, -1, -1, 5]
    assert calls[3][1] - calls[0][1] == pytest.approx(71, abs=2)
    assert len(testing.letters(transport, DLQ)) == 1
    assert transport.backlog("orders", "billing") == 0


async def test_a_program_of_nats(names: dict[str, Any], transport: MemoryTransport) -> None:
    calls: list[bytes] = []

    async def bill(payload: bytes) -> None:
        calls.append(payload)
        if payload == b"invalid":
            raise ValueError
        if payload == b"fails":
            raise OSError
        if payload == b"forgets" and calls.count(payload) == 1:
            await asyncio.sleep(70)

    for payload in (b"invalid", b"fails", b"fine", b"forgets"):
        transport.put("orders", payload)
    await run(BLOCKS["NATS JetStream"], names | {"bill": bill}, 600)
    assert [calls.count(each) for each in (b"invalid", b"fails", b"fine")] == [1, 5, 1]
    assert calls.count(b"forgets") == 1  # it was acked before its redelivery was received
    reasons = [letter.error_class for letter in testing.letters(transport, DLQ)]
    assert sorted(map(str, reasons)) == ["OSError", "ValueError"]
    assert transport.backlog("orders", "billing") == 0


@pytest.mark.parametrize("block", blocks_of(PAGE, "py"), ids=str)
def test_a_program_of_another_system_compiles(block: Block) -> None:
    assert compiled(block)


def test_each_system_has_a_program_and_its_translation() -> None:
    assert [each.title for each in blocks_of(PAGE, "py")] == list(BLOCKS)
