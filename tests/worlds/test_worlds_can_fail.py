"""The search finds faults: each fault put into the core is reported with its events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from search import Found, reached, search
from small_world import Event, Plan

from pulsar_encore.consumer.delivery.receive_queue import ReceiveQueue
from pulsar_encore.core import duplicate_window
from pulsar_encore.core.entry import Entry, EntryKey
from pulsar_encore.core.message_states import HELD
from pulsar_encore.core.rewind_check import Admission, Rewind
from pulsar_encore.core.topic_state import TopicState
from pulsar_encore.message import Message

M0 = ((1, 0), 0)

# a holds m0, loses its connection, b gets it, nacks it, and it comes back to a, who nacks it.
SWALLOWED: tuple[Event, ...] = (
    ("cut", "a"),
    ("send", "b", (1, 0)),
    ("take", "b"),
    ("nack", "b", M0, 1),
    ("due", "b", (1, 0, -1)),
    ("subscribe", "a"),
    ("send", "a", (1, 0)),
    ("nack", "a", M0, 1),
)

HELD_BY_A = Plan(
    mode="shared",
    sizes=(1,),
    names=("a", "b"),
    brisk=True,
    start=(("send", "a", (1, 0)), ("take", "a")),
    budget={"nack": 2, "cut": 1},
)
BATCH_HELD_BY_A = Plan(
    mode="shared",
    sizes=(2,),
    names=("a", "b"),
    brisk=True,
    start=(("send", "a", (1, 0)), ("take", "a"), ("take", "a")),
    budget={"nack": 3},
)
EXCLUSIVE = Plan(
    mode="exclusive",
    sizes=(1, 1, 1),
    names=("a",),
    start=tuple(
        event
        for number in range(2)
        for event in (("send", "a", (1, number)), ("arrive", "a"), ("take", "a"))
    ),
    budget={"nack": 1, "skip": 1},
)
ACKING = Plan(mode="shared", sizes=(2,), names=("a",), budget={"nack": 1, "cut": 1})


def found(plan: Plan) -> Found:
    with pytest.raises(Found) as caught:
        search(plan)
    return caught.value


def by_counts(patch: pytest.MonkeyPatch) -> None:
    """Deliveries are told apart by the broker's redelivery count, as they once were."""
    patch.setattr(
        Message, "_delivery_number", property(lambda self: self._count, lambda self, turn: None)
    )

    def holds(self: TopicState, entry: Entry, index: int, turn: int) -> bool:
        return bool(entry.live) and self.attempts.count(entry, index) == turn

    patch.setattr(TopicState, "is_latest_delivery", holds)


def test_the_order_that_once_lost_a_nack_now_leaves_the_message_waiting() -> None:
    world = reached(HELD_BY_A, SWALLOWED)
    assert world.where(M0) == ["waiting at a"]


def test_the_search_finds_a_nack_lost_by_deliveries_that_are_identified_by_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    by_counts(monkeypatch)
    fault = found(HELD_BY_A)
    assert "m0.0 is nowhere" in str(fault)
    events = fault.events[len(HELD_BY_A.start) :]
    assert sorted(events) == sorted(SWALLOWED), "these, in one order or another"


def test_the_search_finds_a_nack_lost_by_a_filtered_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A copy that is filtered because the message is held must not end its delivery."""

    def admit(self: TopicState, entry: Entry, indexes: Iterable[int], now_ms: int) -> Any:
        for index in indexes:
            if entry.state[index] == HELD:
                entry.delivery_numbers = {
                    **(entry.delivery_numbers or {}),
                    index: entry.delivery_number(index) + 1,
                }
        return real(self, entry, indexes, now_ms)

    real: Any = TopicState._admit
    monkeypatch.setattr(TopicState, "_admit", admit)
    fault = found(BATCH_HELD_BY_A)
    assert "m0.1 is nowhere" in str(fault)
    assert fault.events[len(BATCH_HELD_BY_A.start) :] == (
        ("nack", "a", M0, 1),
        ("due", "a", (1, 0, 0)),
        ("send", "a", (1, 0)),
        ("nack", "a", ((1, 0), 1), 1),
    )


def test_the_search_finds_a_delivery_past_a_hole_if_arrivals_are_not_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Rewind, "judge", lambda self, key, index: Admission.ADMIT)
    assert "past a hole" in str(found(EXCLUSIVE))


def test_the_search_finds_a_delivery_past_a_hole_if_a_rewind_forgets_entries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def begin(
        self: Rewind, given_back: Iterable[tuple[EntryKey, int]] = (), *_: object, **__: object
    ) -> None:
        return None

    monkeypatch.setattr(Rewind, "begin", begin)
    assert "past a hole" in str(found(EXCLUSIVE))


def test_the_search_finds_an_ack_of_an_unacked_message_of_the_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Entry, "remaining", lambda self: 0)
    fault = found(ACKING)
    assert "covers m0." in str(fault) and "nobody acked" in str(fault)
    assert [event[0] for event in fault.events] == ["send", "arrive", "take", "ack", "flush"]


def test_the_search_finds_a_second_delivery_after_an_ack_lost_with_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(duplicate_window, "_add", lambda suspects, keys: None)
    assert "who acked it" in str(found(ACKING))


def test_the_search_finds_acks_that_are_never_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TopicState, "ack", silent(TopicState.ack))
    assert "nothing will send them" in str(found(ACKING))


def silent(ack: Any) -> Any:
    def wrapped(self: TopicState, entry: Entry, index: int) -> int:
        ack(self, entry, index)
        return 0

    return wrapped


def test_the_search_finds_a_second_delivery_of_a_held_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def disconnected(self: TopicState) -> None:
        self.reset()

    monkeypatch.setattr(TopicState, "disconnected", disconnected)
    assert "is handed to a, who" in str(found(ACKING))


def test_the_search_finds_a_queue_that_is_not_emptied_at_a_disconnect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ReceiveQueue, "drop", lambda self, states=None: None)
    assert "what is marked as queued is not what is queued" in str(found(ACKING))


def test_the_report_of_a_found_order_lists_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    by_counts(monkeypatch)
    lines = str(found(HELD_BY_A)).splitlines()
    assert "  broker: send entry 0 to b" in lines
    assert "  b: nack m0.0" in lines
    assert "  b: due m0.0" in lines
    assert lines[-1].startswith("  m0.0: ")


def test_the_search_finds_a_released_message_that_a_later_one_overtakes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On Exclusive, a lost connection must leave a released message in the queue."""
    monkeypatch.setattr(ReceiveQueue, "returned", lambda self, states: [])
    plan = Plan(mode="exclusive", sizes=(2,), names=("a",), budget={"release": 2, "cut": 1})
    assert "m0.1 is handed to a past a hole" in str(found(plan))


def test_the_search_finds_a_failure_in_place_that_leaves_the_old_delivery_current(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Entry, "fail_in_place", lambda self, index: True)
    plan = Plan(
        mode="shared",
        sizes=(1,),
        names=("a",),
        budget={"release": 1, "fail in place": 1},
    )
    with pytest.raises(Found, match="holds its old delivery"):
        search(plan)
