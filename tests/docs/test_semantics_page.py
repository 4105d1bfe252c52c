"""The Python blocks of `docs/semantics.md` run, and the tests that it names exist."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore import Client
from pulsar_encore.testing import MemoryTransport
from tests.harness.pages import DOCS, blocks_of, run_block, text_of

PAGE = text_of("semantics.md")
RECEIPT, IDEMPOTENT = blocks_of("semantics.md")
ROOT = DOCS.parent


@dataclass
class Order:
    id: str
    total: int


@pytest.fixture
def names(client: Client) -> dict[str, Any]:
    return {"client": client, "encore": encore, "Order": Order}


async def test_an_ack_with_a_receipt_is_done_at_the_broker(
    names: dict[str, Any], transport: MemoryTransport
) -> None:
    running = asyncio.create_task(run_block(RECEIPT, names))
    await asyncio.sleep(1)
    transport.put("orders", b"one")
    await running
    assert transport.backlog("orders", "billing") == 0


def test_a_duplicate_is_paid_once(tmp_path: Path) -> None:
    path = str(tmp_path / "paid.db")
    block = replace(IDEMPOTENT, code=IDEMPOTENT.code.replace("paid.db", path))

    async def main() -> None:
        transport = MemoryTransport()
        async with Client("pulsar://nowhere:6650", transport=transport) as client:
            names: dict[str, Any] = {"client": client, "encore": encore, "Order": Order}
            await run_block(block, names)
            async with names["worker"] as worker:
                for _ in range(2):
                    transport.put("orders", encore.Json(Order).encode(Order("A-17", 5)))
                while worker.report().succeeded < 2:
                    await asyncio.sleep(0.01)
                assert worker.report().failed == 0

    asyncio.run(asyncio.wait_for(main(), 30))  # in real time: the handler runs in a thread
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT id, total FROM paid").fetchall() == [("A-17", 5)]


def test_each_guarantee_names_tests_that_exist() -> None:
    table = PAGE.partition("## At each failure")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 15
    for row in rows:
        assert _paths(row.split("|")[-2]), row
    for path in _paths(PAGE):
        assert Path(ROOT, path).exists(), path


def _paths(text: str) -> list[str]:
    return re.findall(r"(?:`|\(\.\./)((?:tests|integration)/[\w/]+\.py)", text)
