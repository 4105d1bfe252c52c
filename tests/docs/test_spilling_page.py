"""The Python blocks of `docs/spilling.md` run: the index, its metrics, and nacks of a consumer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore import Client, MessageId
from pulsar_encore.state import DirectoryBlobs, MemoryBlobs, SpillingIndex
from pulsar_encore.testing import MemoryTransport
from tests.harness.pages import blocks_of, run_block

INDEX, METRICS, NACKS = blocks_of("spilling.md")


async def test_an_id_is_returned_when_it_is_due_and_not_again(tmp_path: Path) -> None:
    folder = str(tmp_path / "due")
    names: dict[str, Any] = {
        "message_id": MessageId(-1, 3, 5),
        "due_ms": 10_000,
        "now_ms": 20_000,
    }
    await run_block(replace(INDEX, code=INDEX.code.replace("/var/lib/mirror/due", folder)), names)
    assert list(names["batch"]) == [(3, 5, -1)]
    with SpillingIndex(DirectoryBlobs(folder)) as index:
        assert len(index) == 0


async def test_each_metric_is_a_line_of_prometheus(capsys: pytest.CaptureFixture[str]) -> None:
    with SpillingIndex(MemoryBlobs()) as index:
        index.add((3, 5, -1), 10_000, bits=10)
        await run_block(METRICS, {"index": index})
    lines = capsys.readouterr().out.splitlines()
    assert 'pulsar_delayed_message_index_loaded{job="mirror"} 1' in lines


async def test_the_nacks_of_a_consumer_use_the_index(
    client: Client, transport: MemoryTransport, tmp_path: Path
) -> None:
    code = NACKS.code.replace("/var/tmp/billing-nacks", str(tmp_path / "nacks"))
    names: dict[str, Any] = {"client": client, "encore": encore}
    await run_block(replace(NACKS, code=code), names)
    consumer = names["consumer"]
    transport.put("orders", b"one")
    await consumer.negative_acknowledge(await consumer.receive(), delay=0.1)
    assert consumer.statistics().nack_index.in_memory == 1
    await consumer.acknowledge(await consumer.receive(timeout=30))
    await consumer.close()
    assert list((tmp_path / "nacks").glob("*/*")) == []
