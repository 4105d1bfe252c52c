"""Shared: every order of events in small worlds, to the depth of each test.

`make worlds DEEPER=4` goes 4 events farther in each.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from search import search
from small_world import Plan

DEEPER = int(os.environ.get("WORLDS_DEEPER", "0"))


def held_by(name: str, messages: int, *, brisk: bool = False) -> tuple[tuple[Any, ...], ...]:
    """One consumer holds all messages of the first entry."""
    arrives = () if brisk else (("arrive", name),)
    return (("send", name, (1, 0)), *arrives, *(("take", name) for _ in range(messages)))


def world(**details: Any) -> Plan:
    return Plan(mode="shared", **details)


ONE = {
    "everything": (
        8,
        world(
            sizes=(2,),
            names=("a",),
            budget={
                "nack": 1,
                "nack by id": 1,
                "ack by id": 1,
                "cut": 1,
                "redeliver all": 1,
                "leave": 1,
            },
        ),
    ),
    "a batch in parts, on the stock client": (
        9,
        world(
            sizes=(2,),
            names=("a",),
            split=True,
            tells=False,
            stock=True,
            budget={"nack": 1, "redeliver all": 1, "cut": 1, "crash": 1},
        ),
    ),
    "ack timeouts": (
        9,
        world(sizes=(2,), names=("a",), budget={"nack": 1, "time out": 2, "cut": 1, "leave": 1}),
    ),
    "a seek": (
        10,
        world(sizes=(2,), names=("a",), budget={"nack": 1, "seek": 1, "cut": 1, "ack by id": 1}),
    ),
    "a seek over two entries": (
        10,
        world(sizes=(1, 1), names=("a",), budget={"nack": 1, "seek": 1, "cut": 1}),
    ),
    "letters, and time that passes": (
        11,
        world(
            sizes=(1,),
            names=("a",),
            budget={"nack": 2, "leave": 2, "cut": 1, "crash": 1, "quiet": 1},
        ),
    ),
}

HELD = {"release": 2, "fail in place": 1}

ONE |= {
    "released messages and failures in place": (
        7,
        world(sizes=(2,), names=("a",), budget=HELD | {"nack": 1, "nack by id": 1, "cut": 1}),
    ),
    "released messages, letters and timeouts": (
        7,
        world(
            sizes=(1, 1),
            names=("a",),
            budget=HELD | {"leave": 1, "time out": 1, "redeliver all": 1, "seek": 1},
        ),
    ),
}

TWO = {
    "a lost connection": (
        8,
        world(sizes=(2,), names=("a", "b"), start=held_by("a", 2), budget={"nack": 2, "cut": 1}),
    ),
    "a broker that tells nothing of acks": (
        8,
        world(
            sizes=(2,),
            names=("a", "b"),
            brisk=True,
            start=held_by("a", 2, brisk=True),
            tells=False,
            budget={"nack": 2, "cut": 1},
        ),
    ),
    "a broker that forgets": (
        8,
        world(sizes=(2,), names=("a", "b"), start=held_by("a", 2), budget={"nack": 1, "crash": 1}),
    ),
    "two entries": (
        8,
        world(sizes=(1, 1), names=("a", "b"), brisk=True, budget={"nack": 2, "cut": 1}),
    ),
    "letters": (
        8,
        world(
            sizes=(1,),
            names=("a", "b"),
            start=held_by("a", 1),
            budget={"nack": 1, "cut": 1, "leave": 1, "redeliver all": 1},
        ),
    ),
    "a loss that nobody notices": (
        9,
        world(sizes=(2,), names=("a", "b"), start=held_by("a", 2), budget={"nack": 1, "flap": 1}),
    ),
    "released messages and failures in place": (
        7,
        world(
            sizes=(2,),
            names=("a", "b"),
            start=held_by("a", 2),
            budget=HELD | {"nack": 1, "flap": 1, "ack by id": 1},
        ),
    ),
}

# Without anything on its way these are small enough to be walked to their ends.
WHOLE = {
    "one message, held": world(
        sizes=(1,),
        names=("a", "b"),
        brisk=True,
        start=held_by("a", 1, brisk=True),
        budget={"nack": 2, "cut": 1},
    ),
    "a batch, held, no fault": world(
        sizes=(2,),
        names=("a", "b"),
        brisk=True,
        start=held_by("a", 2, brisk=True),
        budget={"nack": 3},
    ),
}


@pytest.mark.parametrize("name", ONE)
def test_no_order_of_events_of_one_consumer_breaks_a_rule(name: str) -> None:
    depth, plan = ONE[name]
    assert search(plan, deepest=depth + DEEPER).depth == depth + DEEPER


@pytest.mark.parametrize("name", TWO)
def test_no_order_of_events_of_two_consumers_breaks_a_rule(name: str) -> None:
    depth, plan = TWO[name]
    assert search(plan, deepest=depth + DEEPER).depth == depth + DEEPER


@pytest.mark.parametrize("name", WHOLE)
def test_the_search_of_a_small_plan_covers_every_order_of_events(name: str) -> None:
    assert search(WHOLE[name]).whole
