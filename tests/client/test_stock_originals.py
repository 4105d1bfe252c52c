"""The stock transport keeps originals of batches and chunked messages, and discards them."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

from pulsar_encore.transport.interface import Delivery
from pulsar_encore.transport.stock import originals as module
from pulsar_encore.transport.stock.originals import CppOriginals


class Native:
    """Stands for a native message; its id too, because only real ones are told apart."""

    def length(self) -> int:
        return 10


def batch(topic_number: int, entry: int, size: int = 2) -> Delivery:
    return Delivery(topic_number, 1, entry, size, 0, range(size), [Native() for _ in range(size)])


def chunked(topic_number: int, entry: int) -> Delivery:
    return Delivery(topic_number, 1, entry, 0, 0, (0,), [Native()], first_chunk=(1, entry - 2))


def here(originals: CppOriginals) -> list[tuple[int, int]]:
    """Return (topic number, entry) of each original that is kept."""
    return [
        (topic_number, entry)
        for topic_number in range(3)
        for entry in range(200)
        if originals.find(topic_number, (1, entry)) is not None
    ]


@pytest.mark.parametrize("known", [True, False])
def test_the_oldest_original_is_discarded_at_the_limit(
    known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_ENTRIES", 3)
    originals = CppOriginals()
    if known:
        originals.keep(batch(1, 0), 0.0)
        originals.pop(1, (1, 0))
    for entry in (5, 4, 6):
        originals.keep(batch(0, entry), 0.0)
    originals.keep(batch(0, 5), 1.0)  # came again: not the oldest any more
    originals.keep(batch(1, 1), 2.0)
    assert here(originals) == [(0, 5), (0, 6), (1, 1)]
    originals.keep(batch(2, 1), 2.0)
    assert here(originals) == [(0, 5), (1, 1), (2, 1)]
    assert len(originals) == 3


def test_requested_entries_that_are_not_redelivered_are_discarded() -> None:
    """Another consumer may have received and acked the entry; this consumer is not notified."""
    originals = CppOriginals()
    for entry in range(4):
        originals.keep(batch(0, entry), 0.0)
    for entry in (0, 1):
        originals.note_requested(0, (1, entry), 1.0)
    originals.keep(batch(0, 1), 2.0)
    originals.compact(10.0)
    assert here(originals) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    originals.compact(11.5)
    assert here(originals) == [(0, 1), (0, 2), (0, 3)]


def test_entries_not_redelivered_after_a_reconnect_are_discarded() -> None:
    originals = CppOriginals()
    for entry in range(4):
        originals.keep(batch(0, entry), 0.0)
    originals.note_all_requested(1.0)
    originals.keep(batch(0, 2), 2.0)
    originals.keep(batch(0, 9), 2.0)
    originals.compact(10.0)
    assert len(originals) == 5
    originals.compact(11.5)
    assert here(originals) == [(0, 2), (0, 9)]
    originals.compact(100.0)
    assert len(originals) == 2
    assert originals.compact(100.0) is None


def test_a_batch_with_every_received_index_acked_needs_no_record() -> None:
    originals = CppOriginals()
    delivery = Delivery(0, 1, 7, 4, 1, (1, 3), [Native(), Native()])
    originals.keep(delivery, 0.0)
    assert len(list(originals.take_acked(0, (1, 7), 0b1101))) == 1
    assert here(originals) == [(0, 7)]
    assert len(list(originals.take_acked(0, (1, 7), 0b0101))) == 1
    assert here(originals) == []
    assert list(originals.take_acked(0, (1, 7), 0)) == []


def test_an_acked_batch_frees_its_payload_without_further_arrivals() -> None:
    originals = CppOriginals()
    delivery = batch(0, 1)
    originals.keep(delivery, 0.0)
    payload = weakref.ref(delivery.messages[0])
    del delivery
    assert payload() is not None
    originals.pop(0, (1, 1))
    assert payload() is None


def test_compact_returns_when_it_is_needed_and_works_in_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MAX_COMPACTED", 10)
    originals = CppOriginals()
    assert originals.compact(0.0) is None
    for entry in range(12):
        originals.keep(batch(0, entry), 0.0)
    assert originals.compact(0.25) == pytest.approx(0.75)
    steps = 0
    while originals.compact(5.0) is not None:
        steps += 1
    assert steps == 2  # and the third found the end
    assert len(originals) == 12


def test_the_id_of_a_chunked_message_is_kept_for_a_second_ack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An ack that may be lost with the connection is sent again. If it named only the last chunk,
    the other chunks would never be acked."""
    monkeypatch.setattr(module, "_MAX_SPARE_IDS", 2)
    originals = CppOriginals()
    for entry in (3, 6, 9):
        delivery = chunked(0, entry)
        originals.keep(delivery, 0.0)
    originals.keep(batch(0, 10), 0.0)
    assert originals.chunked_id(0, (1, 10)) is None
    known = originals.chunked_id(0, (1, 3))
    assert known is not None
    originals.pop(0, (1, 3))
    assert originals.chunked_id(0, (1, 3)) is known
    originals.note_all_requested(1.0)
    originals.compact(20.0)
    assert len(originals) == 0
    assert originals.chunked_id(0, (1, 3)) is None  # bounded
    assert originals.chunked_id(0, (1, 9)) is delivery.messages[0]


def test_a_seek_discards_the_payloads_of_chunked_messages() -> None:
    """Otherwise a message that was nacked just before the seek would be delivered after it."""
    originals = CppOriginals()
    originals.keep(chunked(0, 3), 0.0)
    kept: Any = originals.find(0, (1, 3))
    assert kept.chunked is not None
    originals.clear()
    assert kept.chunked is None
    assert originals.chunked_id(0, (1, 3)) is None
    assert originals.compact(100.0) is None


def test_a_cumulative_ack_discards_the_entries_before_it() -> None:
    originals = CppOriginals()
    for topic_number in (0, 1):
        for entry in range(4):
            originals.keep(batch(topic_number, entry), 0.0)
    originals.pop_through(0, (1, 2))
    originals.pop_through(2, (1, 2))
    assert here(originals) == [(0, 3), (1, 0), (1, 1), (1, 2), (1, 3)]
