"""Every order of events in small worlds around a worker's core, and long random walks.

`make worlds DEEPER=4` tries 81 times as many states of each world.
"""

from __future__ import annotations

import os

import pytest
from core_world import Plan, search, walk

from pulsar_encore.worker.worker_core import Order

MOST = 1_000 * 3 ** int(os.environ.get("WORLDS_DEEPER", "0"))

WORLDS = {
    "no order": Plan(
        order=Order.NONE, messages=("a1", "b1"), budget={"bug": 2, "remove": 1, "unstored": 1}
    ),
    "keys": Plan(
        order=Order.KEY,
        messages=("a1", "a2", "b1"),
        budget={"bug": 2, "remove": 1, "unstored": 1},
    ),
    "partitions": Plan(
        order=Order.PARTITION,
        messages=("a1", "a2", "b1"),
        budget={"bug": 1, "later": 1, "remove": 2},
        held_limit=2,
    ),
    "an outage without order": Plan(
        order=Order.NONE,
        messages=("a1", "b1", "c1"),
        budget={"begin outage": 1, "bug": 1},
        failures=2,
    ),
    "an outage with keys": Plan(
        order=Order.KEY,
        messages=("a1", "a2", "b1"),
        budget={"begin outage": 1, "remove": 1},
        failures=2,
    ),
    "two outages": Plan(
        order=Order.KEY, messages=("a1", "b1"), budget={"begin outage": 2}, failures=1
    ),
    "rejections": Plan(
        order=Order.NONE,
        messages=("a1", "b1", "c1"),
        budget={"reject": 4, "remove": 1},
        reject_limit=2,
    ),
    "rejections in an outage": Plan(
        order=Order.PARTITION,
        messages=("a1", "a2", "b1"),
        budget={"reject": 2, "begin outage": 1},
        failures=1,
        reject_limit=1,
    ),
    "a message that must run alone": Plan(
        order=Order.NONE,
        messages=("a1", "b1", "c1"),
        budget={"bug": 1, "remove": 1},
        sizes={"b": 50},
        max_bytes=10,
        prefetch=3,
    ),
    "priorities and a pause": Plan(
        order=Order.NONE,
        messages=("a1", "b1", "b2"),
        budget={"bug": 1, "pause": 1, "remove": 1},
        priorities={"b": 1},
        concurrency=1,
    ),
}


@pytest.mark.parametrize("name", WORLDS)
def test_in_every_order_of_events_the_rules_hold_and_all_is_settled(name: str) -> None:
    searched = search(WORLDS[name], MOST)
    assert searched.states > 200


def long_plan(seed: int) -> Plan:
    """Return a world of twenty messages with many events of every kind."""
    order = list(Order)[seed % 3]
    letters = "abcdefgh"[: 2 + seed % 7]
    return Plan(
        order=order,
        messages=tuple(f"{letters[at % len(letters)]}{at}" for at in range(20)),
        budget={
            "bug": 10,
            "reject": 10,
            "later": 5,
            "begin outage": 1 + seed % 4,
            "remove": 10,
            "unstored": 5,
            "pause": 2,
        },
        concurrency=1 + seed % 5,
        prefetch=1 + seed % 6,
        attempts=1 + seed % 4,
        failures=None if seed % 5 == 0 else 1 + seed % 3,
        reject_limit=None if seed % 4 == 0 else 1 + seed % 4,
        priorities={"a": 2, "b": 1} if seed % 2 else {},
        held_limit=3 + seed % 20,
        sizes={"a": 50, "b": 5, "c": 11},
        max_bytes=10 + seed % 30,
    )


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_random_walks_through_larger_worlds(first: int) -> None:
    for seed in range(first, first + 50):
        walk(long_plan(seed), seed, steps=400)
