"""Restarts of worker processes with long handlers, and rolling restarts with an order."""

from __future__ import annotations

import asyncio

import pytest

from tests.harness.admin import Admin
from tests.harness.pulsar_server import Server

from .restarts import outlive
from .rollout import roll

# looptime's plugin requests a loop before every synchronous test; see the contract's fixtures.
asyncio.set_event_loop(None)

STALL_S = 10.0
"""The longest time without progress of a key."""


@pytest.mark.parametrize(
    ("order", "with_state", "processes"),
    [
        ("none", True, 1),
        ("none", False, 2),
        ("key", True, 1),
        ("key", False, 2),
        ("partition", True, 1),
        ("partition", False, 2),
    ],
)
async def test_a_drain_costs_a_long_handler_no_attempt(
    pulsar: Server, order: str, with_state: bool, processes: int
) -> None:
    """With three attempts, the message is cancelled four times, fails twice and is processed."""
    outcome = await outlive(
        pulsar.service_url,
        restarts=4,
        order=order,
        with_state=with_state,
        processes=processes,
    )
    # A process that is killed at the end may have begun another call.
    assert outcome.attempts in ([1] * 5 + [2, 3], [1] * 6 + [2, 3])
    assert (outcome.processed, outcome.letters) == (1, 0)
    assert {each.code for each in outcome.exits} == {0}


async def test_rolling_restarts_keep_the_order_of_keys(pulsar: Server) -> None:
    outcome = await roll(pulsar.service_url, restarts=4, order="key")
    assert not outcome.lost
    assert not outcome.again
    assert not outcome.disorder
    assert outcome.longest_stall[0] < STALL_S


async def test_rolling_restarts_lose_no_message_of_a_partition(
    pulsar: Server, admin: Admin
) -> None:
    """A partition that moves to another worker may repeat the last messages, in order."""
    outcome = await roll(pulsar.service_url, restarts=4, order="partition", admin=admin)
    assert not outcome.lost
    assert not outcome.skipped
    assert outcome.longest_stall[0] < STALL_S
