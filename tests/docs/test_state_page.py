"""The Python block of `docs/state.md` runs: due times and attempts outlast the process."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pulsar_encore as encore
from pulsar_encore import Client
from pulsar_encore.testing import MemoryTransport
from tests.harness.pages import blocks_of, run_block

DELAY_S = 0.8


async def test_a_nacked_message_keeps_its_due_time_and_its_attempt(
    transport: MemoryTransport, tmp_path: Path
) -> None:
    (block,) = blocks_of("state.md")
    block = replace(block, code=block.code.replace("/var/lib/billing/encore", str(tmp_path / "s")))
    async with Client("pulsar://nowhere:6650", transport=transport) as client:
        names: dict[str, Any] = {"client": client, "encore": encore}
        await run_block(block, names)
        transport.put("orders", b"one")
        message = await names["consumer"].receive()
        started = time.monotonic()
        await names["consumer"].negative_acknowledge(message, delay=DELAY_S)
    async with Client("pulsar://nowhere:6650", transport=transport) as client:
        names = {"client": client, "encore": encore}
        await run_block(block, names)
        message = await names["consumer"].receive(timeout=30)
        assert time.monotonic() - started >= DELAY_S
        assert message.attempt == 2
        await names["consumer"].acknowledge(message)
    assert transport.backlog("orders", "billing") == 0
