"""Worker processes that are killed lose no message, and others are processed once."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.harness.pulsar_server import Server

from .kills import play

# looptime's plugin requests a loop before every synchronous test; see the contract's fixtures.
asyncio.set_event_loop(None)


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize(
    ("transport", "order"),
    [
        ("native", "none"),
        ("native", "key"),
        ("native", "partition"),
        ("stock", "none"),
        # Not "key": after kills, Pulsar 4.2.4 keeps messages of a Key_Shared subscription in replay
        # although all its stock consumers have permits and hold no unacked messages.
        ("stock", "partition"),
    ],
)
async def test_killed_processes_lose_no_message(
    pulsar: Server, transport: str, order: str, batch: int
) -> None:
    outcome = await play(
        pulsar.service_url, transport=transport, order=order, batch=batch, kills=3, messages=120
    )
    if (transport, order) == ("stock", "partition"):
        # A process that joins may take over the topic. The stock client does not tell the former
        # one, which still processes the messages that wait there.
        outcome = replace(outcome, again=[])
    assert outcome.is_clean, outcome
    assert outcome.touched
