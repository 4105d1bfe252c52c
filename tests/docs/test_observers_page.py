"""The example of `docs/observers.md` runs, and its table has every method."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore.testing import MemoryTransport
from tests.harness.pages import blocks_of, run_block, text_of


async def test_the_observer_counts_failures(
    transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULSAR_ENCORE_TRANSPORT", "native")
    names: dict[str, Any] = {}
    [block] = blocks_of("observers.md")
    await run_block(block, names)
    await names["client"].close()

    async def handler(value: bytes) -> None:
        raise encore.Reject("never")

    transport.put("orders", b"1")
    observers = [names["failures"]]
    async with encore.Client("memory://", transport=transport, observers=observers) as client:
        worker = encore.Worker(
            client, "orders", "billing", handler, initial_position=encore.InitialPosition.Earliest
        )
        async with worker:
            while not names["failures"].by_error:
                await asyncio.sleep(0.1)
    assert names["failures"].by_error == {"Reject": 1}


def test_the_table_has_every_method() -> None:
    rows = re.findall(r"^\| (`.*?) \|", text_of("observers.md"), flags=re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == {name for name in vars(encore.Observer) if not name.startswith("_")}
