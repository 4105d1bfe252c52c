"""Indexes that batches arrived without: how they are noted, and when they are forgotten."""

from __future__ import annotations

from core_kit import make_topic_state

from pulsar_encore.core import withheld_indexes
from pulsar_encore.core.withheld_indexes import WithheldIndexes

KEY = (3, 7)


def test_the_oldest_batches_are_forgotten_but_not_those_with_an_ack_to_come() -> None:
    in_use = {(1, number) for number in range(0, 20_000, 2)}
    withheld = WithheldIndexes(in_use.__contains__)
    for number in range(20_000):
        withheld.note((1, number), 4, 0b1000)
    assert all(withheld.of(key) for key in in_use)
    in_use.clear()
    for number in range(20_000, 40_000):
        withheld.note((1, number), 4, 0b1000)
    assert len(withheld) == withheld_indexes.MOST
    assert withheld.of((1, 39_999))
    assert not withheld.of((1, 0))


def test_a_batch_without_withheld_indexes_is_forgotten() -> None:
    withheld = WithheldIndexes(lambda key: True)
    withheld.note(KEY, 4, 0b1000)
    assert (withheld.of(KEY), withheld.size_of(KEY)) == (0b1000, 4)
    withheld.note(KEY, 4, 0)
    assert (withheld.of(KEY), withheld.size_of(KEY), len(withheld)) == (0, 0, 0)


def test_a_known_batch_that_arrives_again_without_messages_notes_them() -> None:
    """They were released here, and another process has them pending."""
    state = make_topic_state()
    entry, _ = state.arrive(KEY, 3, 0, range(3))
    assert entry is not None
    assert entry.deliver(0)
    assert state.ack(entry, 0)
    state.release_all()
    assert state.withheld.of(KEY) == 0, "acked here"
    state.arrive(KEY, 3, 1, [1], 0b010, withheld=0b101)
    assert state.withheld.of(KEY) == 0b100
    again = state.find(KEY)
    assert again is not None
    state.arrive(KEY, 3, 2, [2], 0b100, withheld=0b011)
    assert state.withheld.of(KEY) in (0, 0b010)
    assert again.remaining() & 0b100, "it is due again"
