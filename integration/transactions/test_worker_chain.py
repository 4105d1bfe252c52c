"""Transactional workers on Pulsar: a chain of two under kills."""

from __future__ import annotations

import asyncio
import os

import pytest

from tests.harness.pulsar_server import Broker

from .worker_chain import play

# looptime's plugin requests a loop before every synchronous test; see the contract's fixtures.
asyncio.set_event_loop(None)

KILLS = int(os.environ.get("ENCORE_KILLS", "5"))


@pytest.mark.parametrize("order", ["none", "key", "partition"])
async def test_a_chain_of_killed_workers_has_one_output_for_each_input(
    transactional: Broker, order: str
) -> None:
    outcome = await play(transactional, order=order, kills=KILLS, seed=KILLS)
    assert outcome.is_clean, outcome


@pytest.mark.timeout(400)
async def test_a_broker_that_is_killed_after_a_commit_keeps_it(transactional: Broker) -> None:
    """The outputs of a visible transaction are not made again, and no other input is lost."""
    outcome = await play(
        transactional, order="key", kills=1, broker_kills=1, unloads=2, messages=300, seed=34
    )
    assert outcome.is_clean, outcome
