"""Exclusive and Failover: every order of events in small worlds, to the depth of each test.

`make worlds DEEPER=4` goes 4 events farther in each.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from search import search
from small_world import Plan

DEEPER = int(os.environ.get("WORLDS_DEEPER", "0"))


def world(**details: Any) -> Plan:
    return Plan(mode="exclusive", names=("a",), **details)


def failover(**details: Any) -> Plan:
    return Plan(mode="failover", names=("a", "b"), **details)


def handed_over(entries: int) -> tuple[tuple[Any, ...], ...]:
    """The first plain entries were handed over, and are held."""
    each = (("arrive", "a"), ("take", "a"))
    return tuple(
        event for number in range(entries) for event in (("send", "a", (1, number)), *each)
    )


EXCLUSIVE = {
    "a nack, and a read that passes its rewind": (
        11,
        world(sizes=(1, 1, 1), start=handed_over(2), budget={"nack": 1, "skip": 1}),
    ),
    "two skips in a row": (
        9,
        world(sizes=(1, 1, 1, 1), start=handed_over(2), budget={"redeliver all": 1, "skip": 2}),
    ),
    "a rewind within a rewind": (
        9,
        world(sizes=(1, 1, 1), start=handed_over(1), budget={"redeliver all": 2, "skip": 2}),
    ),
    "cumulative acks": (
        9,
        world(
            sizes=(2, 1),
            split=True,
            budget={"ack all up to": 2, "nack": 1, "redeliver all": 1, "skip": 1},
        ),
    ),
    "cumulative acks that get lost": (
        11,
        world(sizes=(2, 1), budget={"ack all up to": 2, "crash": 1, "cut": 1}),
    ),
    "a seek": (
        9,
        world(sizes=(1, 1, 1), budget={"ack all up to": 1, "seek": 1, "redeliver all": 1}),
    ),
    "acks and nacks by id": (
        9,
        world(
            sizes=(2, 1),
            budget={"ack by id": 2, "nack by id": 1, "skip": 1, "redeliver all": 1},
        ),
    ),
    "letters": (9, world(sizes=(2, 1), budget={"leave": 2, "nack": 1, "skip": 1, "cut": 1})),
    "ack timeouts": (
        9,
        world(sizes=(1, 1, 1), start=handed_over(1), budget={"time out": 1, "nack": 1, "skip": 1}),
    ),
    "a broker that forgets": (
        11,
        world(sizes=(2, 1), split=True, tells=False, budget={"nack": 1, "crash": 1, "skip": 1}),
    ),
    "time that passes": (
        8,
        world(sizes=(1, 1, 1), start=handed_over(2), budget={"nack": 1, "quiet": 1, "skip": 2}),
    ),
    "a loss that nobody notices": (
        8,
        world(sizes=(1, 1, 1), start=handed_over(1), budget={"nack": 1, "flap": 1}),
    ),
}

HELD = {"release": 2, "fail in place": 1}

EXCLUSIVE |= {
    "released messages and failures in place": (
        8,
        world(sizes=(1, 2, 1), start=handed_over(1), budget=HELD | {"nack": 1, "skip": 1}),
    ),
    "released messages and lost connections": (
        8,
        world(sizes=(2, 1), budget=HELD | {"cut": 1, "seek": 1}),
    ),
    "released messages and cumulative acks": (
        8,
        world(sizes=(2, 1), split=True, budget=HELD | {"ack all up to": 2, "redeliver all": 1}),
    ),
}

FAILOVER = {
    "the active consumer changes": (
        9,
        failover(sizes=(1, 1), budget={"nack": 1, "switch": 2}),
    ),
    "in the middle of a batch": (
        9,
        failover(
            sizes=(2,), split=True, budget={"ack all up to": 2, "switch": 2, "redeliver all": 1}
        ),
    ),
    "a lost connection": (
        8,
        failover(sizes=(1, 1), brisk=True, budget={"nack": 1, "switch": 1, "cut": 1}),
    ),
    "a read that passes a rewind": (
        8,
        failover(sizes=(1, 1, 1), start=handed_over(1), budget={"nack": 1, "switch": 1, "skip": 1}),
    ),
    "released messages and failures in place": (
        7,
        failover(sizes=(2, 1), start=handed_over(0), budget=HELD | {"switch": 1, "cut": 1}),
    ),
}


@pytest.mark.parametrize("name", EXCLUSIVE)
def test_no_order_of_events_on_exclusive_breaks_a_rule(name: str) -> None:
    depth, plan = EXCLUSIVE[name]
    assert search(plan, deepest=depth + DEEPER).depth == depth + DEEPER


@pytest.mark.parametrize("name", FAILOVER)
def test_no_order_of_events_on_failover_breaks_a_rule(name: str) -> None:
    depth, plan = FAILOVER[name]
    assert search(plan, deepest=depth + DEEPER).depth == depth + DEEPER
