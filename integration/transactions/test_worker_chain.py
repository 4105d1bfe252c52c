"""Transactional workers on Pulsar: a chain of two under kills."""

from __future__ import annotations

import asyncio
import os

import pytest

from .worker_chain import play

# looptime's plugin requests a loop before every synchronous test; see the contract's fixtures.
asyncio.set_event_loop(None)

KILLS = int(os.environ.get("ENCORE_KILLS", "5"))


@pytest.mark.parametrize("order", ["none", "key", "partition"])
async def test_a_chain_of_killed_workers_has_one_output_for_each_input(
    transactional_url: str, order: str
) -> None:
    outcome = await play(transactional_url, order=order, kills=KILLS, seed=KILLS)
    assert outcome.is_clean, outcome
