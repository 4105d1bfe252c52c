"""A failed message that stays here keeps its due time as long as its entry has a record."""

from __future__ import annotations

from random import Random

import pytest
from core_kit import TOPIC

from pulsar_encore.core import entry_records
from pulsar_encore.core.due_index import TimeBucketIndex
from pulsar_encore.core.entry import Entry
from pulsar_encore.core.message_states import AWAY, HELD, QUEUED
from pulsar_encore.core.topic_state import TopicState


def in_order() -> TopicState:
    return TopicState(
        object(),
        0,
        TOPIC,
        -1,
        shared=True,
        nacks=TimeBucketIndex(),
        timeouts=TimeBucketIndex(),
        in_order=True,
    )


def arrived(state: TopicState, number: int, size: int = 1) -> Entry:
    entry, _ = state.arrive((1, number), size if size > 1 else 0, 0, range(size))
    assert entry is not None
    return entry


@pytest.mark.parametrize("size", [1, 3])
def test_held_back_times_of_messages_at_another_consumer_are_bounded(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(entry_records, "_MAX_AWAY", 50)
    state = in_order()
    for number in range(1_000):
        entry = arrived(state, number, size)
        entry.deliver(0)
        assert state.hold_back(entry, 0, due_ms=1_000, bits=0)
        state.disconnected()  # and it comes no more
        state._check()
    assert len(state.snapshot()["held_back"]) <= 50


def test_a_nack_of_a_queued_message_delays_its_redelivery() -> None:
    state = in_order()
    entry = arrived(state, 1)
    assert state.hold_back(entry, 0, due_ms=1_000, bits=0)
    state.disconnected()
    again = arrived(state, 1)
    assert state.ordered.not_before(again, 0) == 1_000
    state._check()


@pytest.mark.parametrize("seed", range(20))
def test_every_held_back_time_has_its_entry_whatever_happens(seed: int) -> None:
    rng, state = Random(seed), in_order()
    for _ in range(300):
        size = rng.choice([1, 1, 3])
        number = rng.randrange(200) * 3 + size
        entry = state.find((1, number))
        if entry is None or rng.random() < 0.2:
            entry, _ = state.arrive((1, number), size if size > 1 else 0, 0, range(size))
        if entry is None or not entry.live:  # acked
            continue
        index = rng.randrange(size)
        what = entry.state[index]
        match rng.randrange(10):
            case 0 | 1 if what == QUEUED:
                state.end_hold_back(entry, index)
                entry.deliver(index)
            case 2 | 3 | 4:
                state.hold_back(entry, index, due_ms=rng.randrange(1_000), bits=0)
            case 5 if what != AWAY:
                state.ack(entry, index)
            case 6 if what == HELD:
                state.ack_entry(entry.key)
            case 7:
                state.disconnected()
            case 8 if rng.random() < 0.1:
                state.release_all()
                assert not state.snapshot()["held_back"]
            case 9 if rng.random() < 0.2:
                state.requeue_all()
                assert not state.snapshot()["held_back"] and not state.count(HELD)
            case _:
                pass
        state._check()
