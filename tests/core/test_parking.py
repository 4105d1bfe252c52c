"""A batch that only waits is kept in a few bytes, and nobody can tell."""

from __future__ import annotations

import gc
import tracemalloc
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import pytest

from pulsar_encore.consumer.receive_queue import ReceiveQueue
from pulsar_encore.consumer.settlement import Settlement
from pulsar_encore.core.in_flight import InFlight
from pulsar_encore.ids import MessageId
from pulsar_encore.message import Message

TOPIC = "persistent://public/default/t"
KEY = (1, 1)


class Bench:
    """One Shared source, settled as a consumer does it, with a clock set by hand."""

    def __init__(self) -> None:
        self.home = InFlight(self, 0, TOPIC, -1, shared=True)
        self.queue = ReceiveQueue(None, lambda *_: None, ANY, lambda _: None)
        link: Any = SimpleNamespace(
            capabilities=SimpleNamespace(ack_unseen_index=True, name="bench"),
            source_of=lambda *_: 0,
        )
        acks: Any = SimpleNamespace(added=lambda home, messages: None)
        redelivery: Any = SimpleNamespace(
            nack_due=lambda count, delay_ms: (self.now + (delay_ms or 0), 0),
            nacked=lambda home: None,
        )
        self.settlement = Settlement(self, link, lambda source: self.home, acks, redelivery)
        self.now = 1_000
        self.held: list[Message] = []

    def deliver(self, indexes: list[int], key: tuple[int, int] = KEY) -> list[Message]:
        """A batch of three arrives, and what of it is wanted is taken."""
        entry, positions = self.home.arrive(key, 3, 0, indexes)
        taken = []
        if entry is not None and positions:
            raws: Any = [indexes[position] for position in positions]
            self.queue.push(entry, raws, raws)
            while message := self.queue.take():
                taken.append(message)
        return taken

    def flush(self) -> tuple[list[tuple[int, int]], list[tuple[tuple[int, int], int]]]:
        """Acks leave: whole entries, and (entry, indexes left) of parts."""
        unsent = self.home.acks.take(self.now)
        parts = [(entry.key, entry.remaining()) for entry in unsent.parts]
        self.home.sent(unsent.parts)
        self.home._check()
        return unsent.whole, parts

    def give_back(self, now: int) -> list[tuple[int, list[int]]]:
        self.now = now
        groups = self.home.release(self.home.nacks.pop_due(now))
        self.home._check()
        return groups

    def one_waits(self) -> list[Message]:
        """Indexes 0 and 1 are acked, 2 waits for ten seconds, and all that was sent."""
        messages = self.deliver([0, 1, 2])
        self.settlement.ack(messages[0])
        self.settlement.ack(messages[1])
        self.settlement.nack(messages[2], 10)
        assert self.flush() == ([], [(KEY, 0b100)])
        assert len(self.home._parked) == 1
        return messages


@pytest.fixture(params=["message", "id", "id, all messages dropped"])
def named(request: pytest.FixtureRequest) -> tuple[Bench, Any]:
    """The message that waits in a parked batch, in whichever way one can name it."""
    bench = Bench()
    messages = bench.one_waits()
    if request.param == "message":
        return bench, messages[2]
    named_by = MessageId.deserialize(messages[2].message_id().serialize(), TOPIC)
    if request.param == "id":
        bench.held = messages
    return bench, named_by


def test_its_ack_cancels_the_nack_and_settles_the_batch(named: tuple[Bench, Any]) -> None:
    bench, message = named
    bench.settlement.ack(message)
    assert bench.flush() == ([KEY], [])
    assert bench.give_back(100_000) == []
    assert bench.home.unacked == 0


def test_another_nack_moves_its_time(named: tuple[Bench, Any]) -> None:
    bench, message = named
    bench.settlement.nack(message, 30)
    assert len(bench.home._parked) == 1
    assert bench.give_back(11_500) == []
    assert bench.give_back(31_500) == [(1, [1])]


def test_an_ack_of_its_whole_entry_cancels_the_nack(named: tuple[Bench, Any]) -> None:
    bench, _ = named
    bench.settlement.ack(MessageId(-1, *KEY, topic=TOPIC))
    assert bench.flush() == ([KEY], [])
    assert bench.give_back(100_000) == []
    assert bench.home.unacked == 0


def test_only_what_was_nacked_comes_again_and_its_look_counts() -> None:
    bench = Bench()
    bench.one_waits()
    assert bench.give_back(11_500) == [(1, [1])]
    (again,) = bench.deliver([0, 1, 2])
    assert (again._index, again.redelivery_count()) == (2, 1)
    bench.settlement.nack(again, 10)
    assert bench.flush() == ([], [(KEY, 0b100)]), "the broker sent what was acked: told again"
    del again
    assert bench.give_back(100_000) == [(1, [1])]
    (again,) = bench.deliver([2])
    assert again.redelivery_count() == 2


def test_it_waits_on_where_the_batch_comes_early() -> None:
    bench = Bench()
    bench.one_waits()
    assert bench.deliver([0, 1, 2]) == []
    assert bench.flush() == ([], [(KEY, 0b100)])
    assert len(bench.home._parked) == 1
    assert bench.deliver([2]) == []
    assert len(bench.home._parked) == 1
    assert bench.give_back(11_500) == [(1, [1])]


def test_only_the_last_look_can_nack_it_again() -> None:
    bench = Bench()
    first = bench.one_waits()[2]
    bench.give_back(11_500)
    (second,) = bench.deliver([2])
    bench.settlement.nack(second, 10)
    bench.flush()
    assert len(bench.home._parked) == 1
    bench.settlement.nack(first, 1_000)
    assert bench.give_back(21_000) == []
    assert bench.give_back(21_600) == [(1, [1])]


def test_a_look_from_before_a_forgotten_record_cannot_nack_it_again() -> None:
    """Turns begin anew with a record, so what tells two records apart has to survive."""
    bench = Bench()
    old = bench.deliver([0, 1, 2])
    bench.home.release_all()
    entry = bench.home.find(KEY)
    assert entry is not None
    bench.home._drop(entry)  # as the bound on what is away does it
    new = bench.deliver([0, 1, 2])
    for message in new:
        bench.settlement.nack(message, 10)
    assert len(bench.home._parked) == 1
    bench.settlement.nack(old[0], 1_000)
    assert bench.give_back(11_500) == [(1, [1])]
    assert bench.home.unacked == 0


def test_a_batch_of_which_all_waits_is_parked_too() -> None:
    bench = Bench()
    for message in bench.deliver([0, 1, 2]):
        bench.settlement.nack(message, 10)
    assert len(bench.home._parked) == 1
    assert bench.home.unacked == len(bench.home.nacks) == 3
    assert bench.give_back(11_500) == [(1, [1])]
    assert bench.home.unacked == 0


def test_what_is_held_or_unsent_is_not_parked() -> None:
    bench = Bench()
    first, second, third = bench.deliver([0, 1, 2])
    bench.settlement.nack(first, 10)
    assert not len(bench.home._parked), "two are held"
    bench.settlement.ack(second)
    bench.settlement.nack(third, 10)
    assert not len(bench.home._parked), "an ack waits to be sent"
    bench.flush()
    assert len(bench.home._parked) == 1
    bench.settlement.ack(first)
    assert not len(bench.home._parked), "an ack waits to be sent"
    assert bench.flush() == ([], [(KEY, 0b100)])
    assert len(bench.home._parked) == 1


def test_after_a_reconnect_the_acks_of_the_last_moments_are_sent_again() -> None:
    bench = Bench()
    bench.one_waits()
    bench.home.acks.disconnected(bench.now)
    bench.home.disconnected()
    bench.home.reconnected()
    assert bench.flush() == ([], [(KEY, 0b100)])
    assert len(bench.home._parked) == 1


def test_after_a_reconnect_acks_sent_long_ago_are_told_when_the_batch_comes() -> None:
    bench = Bench()
    bench.one_waits()
    bench.now += 5_000
    (other, *_) = bench.deliver([0, 1, 2], (1, 2))
    bench.settlement.ack(other)
    bench.flush()
    bench.home.acks.disconnected(bench.now)
    bench.home.disconnected()
    bench.home.reconnected()
    assert bench.flush() == ([], [((1, 2), 0b110)])
    assert bench.deliver([0, 1, 2]) == []
    assert bench.flush() == ([], [(KEY, 0b100)])


def test_redeliver_all_brings_it_at_once() -> None:
    bench = Bench()
    bench.one_waits()
    bench.home.release_all()
    bench.home._check()
    assert bench.home.unacked == 0
    (again,) = bench.deliver([0, 1, 2])
    assert (again._index, again.redelivery_count()) == (2, 1)


def test_a_seek_forgets_it() -> None:
    bench = Bench()
    messages = bench.one_waits()
    bench.home.reset()
    bench.home._check()
    bench.settlement.ack(messages[2])
    bench.settlement.nack(messages[2], 1)
    assert bench.home.unacked == len(bench.home.nacks) == len(bench.home.acks) == 0
    assert len(bench.deliver([0, 1, 2])) == 3


def test_a_pending_nack_inside_a_batch_weighs_under_64_bytes() -> None:
    home = InFlight(object(), 0, TOPIC, -1, shared=True)
    count, size = 10_000, 10
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(count):
            entry, positions = home.arrive((1, number), size, 0, range(size))
            assert entry is not None and len(positions) == size
            nacked = number * 7 % size
            for index in range(size):
                if index != nacked:
                    home.ack(entry, index)
            home.nack(entry, nacked, 60_000 + number, 4)
            if number % 100 == 99:
                home.sent(home.acks.take(number // 10).parts)
        del entry
        home.acks.pop_uncertain_parts()
        gc.collect()
        weight, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(home.nacks) == home.unacked == count
    assert weight / count < 64
    due = home.nacks.pop_due(1_000_000)
    assert sum(len(numbers) for _, numbers in home.release(due)) == count
