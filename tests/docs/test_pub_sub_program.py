"""The translated program of Pub/Sub, whose handler runs in threads, in real time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from threading import current_thread, main_thread
from typing import Any

import pulsar_encore as encore
from pulsar_encore import Client, testing
from pulsar_encore.testing import MemoryTransport
from tests.harness.pages import blocks_of, run_block

[BLOCK] = [
    each for each in blocks_of("coming-from-other-brokers.md") if each.title == "Google Pub/Sub"
]


async def test_a_program_of_pub_sub(client: Client, transport: MemoryTransport) -> None:
    calls: list[bytes] = []

    def charge(payload: bytes) -> None:
        assert current_thread() is not main_thread()
        calls.append(payload)
        if payload == b"fails":
            raise OSError

    for payload in (b"fails", b"fine"):
        transport.put("orders", payload)
    names: dict[str, Any] = {"charge": charge, "client": client, "encore": encore}
    code = BLOCK.code.replace("min_delay=10", "min_delay=0.01")
    assert code != BLOCK.code
    running = asyncio.create_task(run_block(replace(BLOCK, code=code), names))
    async with asyncio.timeout(30):
        while not testing.letters(transport, "orders-billing-DLQ"):
            await asyncio.sleep(0.01)
    names["worker"].stop()
    await running
    assert (calls.count(b"fails"), calls.count(b"fine")) == (5, 1)
    assert transport.backlog("orders", "billing") == 0
