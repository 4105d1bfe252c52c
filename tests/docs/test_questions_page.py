"""The Python blocks of `docs/questions.md` run."""

from __future__ import annotations

from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore import Client
from pulsar_encore.admin import BacklogAnalysis, SubscriptionStats, TopicStats
from pulsar_encore.testing import MemoryTransport
from tests.harness.pages import Block, blocks_of, run_block

BLOCKS = blocks_of("questions.md")


class Web:
    """The answers of a web service."""

    def __init__(self, *_: Any) -> None: ...

    async def partitions(self, topic: str) -> int:
        return 0

    async def stats(self, topic: str, **_: Any) -> TopicStats:
        found = SubscriptionStats("Exclusive", 2, 0, 0, 1, ())
        return TopicStats({"billing": found}, {})

    async def analyze_backlog(self, topic: str, subscription: str) -> BacklogAnalysis:
        return BacklogAnalysis(2, 20, True)

    def close(self) -> None: ...


@pytest.mark.parametrize("block", BLOCKS, ids=str)
async def test_a_block_of_the_page_runs(
    block: Block,
    client: Client,
    transport: MemoryTransport,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("pulsar_encore.admin.WebService", Web)
    transport.put("persistent://public/default/orders", b"x")
    made = encore.Client
    monkeypatch.setattr(
        encore, "Client", lambda *args, **options: made(*args, transport=transport, **options)
    )
    subscribe = client.subscribe

    def from_earliest(*args: Any, **options: Any) -> Any:
        return subscribe(*args, initial_position=encore.InitialPosition.Earliest, **options)

    monkeypatch.setattr(client, "subscribe", from_earliest)
    await run_block(block, {"client": client, "pulsar_encore": encore})
    printed = capsys.readouterr().out
    if "lag" in block.code:
        assert "20 messages" in printed and "exact: True" in printed
    if "pending" in block.code:
        assert " nacked " in printed
