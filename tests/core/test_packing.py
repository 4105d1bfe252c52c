"""A batch that only waits is packed into a few bytes, without a visible difference."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any
from unittest.mock import ANY

import pytest
from core_kit import TOPIC, Settling, source_state

from pulsar_encore.consumer.delivery.receive_queue import ReceiveQueue
from pulsar_encore.message import Message
from pulsar_encore.values.message_id import MessageId
from tests.harness.nacked_memory import bytes_per_nack

KEY = (1, 1)


class Bench:
    """One Shared source, settled as a consumer does it, with a clock set by hand."""

    def __init__(self) -> None:
        self.source = source_state()
        self.queue = ReceiveQueue(None, lambda *_: None, ANY, lambda _: None)
        self.settling = Settling(self.source, lambda: self.now)
        self.now = 1_000
        self.held: list[Message] = []

    def deliver(self, indexes: list[int], key: tuple[int, int] = KEY) -> list[Message]:
        """Let a batch of three arrive, and take its wanted messages."""
        entry, positions = self.source.arrive(key, 3, 0, indexes)
        taken = []
        if entry is not None and positions:
            raws: Any = [indexes[position] for position in positions]
            self.queue.push(entry, raws, raws)
            while message := self.queue.take():
                taken.append(message)
        return taken

    def flush(self) -> tuple[list[tuple[int, int]], list[tuple[tuple[int, int], int]]]:
        """Acks leave: whole entries, and (entry, indexes left) of parts."""
        unsent = self.source.acks.take(self.now)
        parts = [(entry.key, entry.remaining()) for entry in unsent.parts]
        self.source.sent(unsent.parts)
        self.source._check()
        return unsent.whole, parts

    def give_back(self, now: int) -> list[tuple[int, list[int]]]:
        self.now = now
        groups = self.source.release(self.source.nacks.pop_due(now))
        self.source._check()
        return groups

    def one_waits(self) -> list[Message]:
        """Indexes 0 and 1 are acked, 2 waits for ten seconds, and all that was sent."""
        messages = self.deliver([0, 1, 2])
        self.settling.ack(messages[0])
        self.settling.ack(messages[1])
        self.settling.nack(messages[2], 10)
        assert self.flush() == ([], [(KEY, 0b100)])
        assert len(self.source.snapshot()["packed"]) == 1
        return messages


@pytest.fixture(params=["message", "id", "id, all messages dropped"])
def named(request: pytest.FixtureRequest) -> tuple[Bench, Any]:
    """The message that waits in a packed batch, in whichever way one can name it."""
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
    bench.settling.ack(message)
    assert bench.flush() == ([KEY], [])
    assert bench.give_back(100_000) == []
    assert bench.source.unacked == 0


def test_another_nack_moves_its_time(named: tuple[Bench, Any]) -> None:
    bench, message = named
    bench.settling.nack(message, 30)
    assert len(bench.source.snapshot()["packed"]) == 1
    assert bench.give_back(11_500) == []
    assert bench.give_back(31_500) == [(1, [1])]


def test_an_ack_of_its_whole_entry_cancels_the_nack(named: tuple[Bench, Any]) -> None:
    bench, _ = named
    bench.settling.ack(MessageId(-1, *KEY, topic=TOPIC))
    assert bench.flush() == ([KEY], [])
    assert bench.give_back(100_000) == []
    assert bench.source.unacked == 0


def test_only_what_was_nacked_comes_again_and_its_look_counts() -> None:
    bench = Bench()
    bench.one_waits()
    assert bench.give_back(11_500) == [(1, [1])]
    (again,) = bench.deliver([0, 1, 2])
    assert (again._index, again.redelivery_count()) == (2, 1)
    bench.settling.nack(again, 10)
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
    assert len(bench.source.snapshot()["packed"]) == 1
    assert bench.deliver([2]) == []
    assert len(bench.source.snapshot()["packed"]) == 1
    assert bench.give_back(11_500) == [(1, [1])]


def test_only_the_last_look_can_nack_it_again() -> None:
    bench = Bench()
    first = bench.one_waits()[2]
    bench.give_back(11_500)
    (second,) = bench.deliver([2])
    bench.settling.nack(second, 10)
    bench.flush()
    assert len(bench.source.snapshot()["packed"]) == 1
    bench.settling.nack(first, 1_000)
    assert bench.give_back(21_000) == []
    assert bench.give_back(21_600) == [(1, [1])]


def test_a_look_from_before_a_forgotten_record_cannot_nack_it_again() -> None:
    """A new record counts turns from 0, so the mark that tells two records apart has to survive."""
    bench = Bench()
    old = bench.deliver([0, 1, 2])
    bench.source.release_all()
    entry = bench.source.find(KEY)
    assert entry is not None
    bench.source._drop(entry)  # as the bound on what is away does it
    new = bench.deliver([0, 1, 2])
    for message in new:
        bench.settling.nack(message, 10)
    assert len(bench.source.snapshot()["packed"]) == 1
    bench.settling.nack(old[0], 1_000)
    assert bench.give_back(11_500) == [(1, [1])]
    assert bench.source.unacked == 0


def test_a_batch_that_waits_as_a_whole_is_packed_too() -> None:
    bench = Bench()
    for message in bench.deliver([0, 1, 2]):
        bench.settling.nack(message, 10)
    assert len(bench.source.snapshot()["packed"]) == 1
    assert bench.source.unacked == len(bench.source.nacks) == 3
    assert bench.give_back(11_500) == [(1, [1])]
    assert bench.source.unacked == 0


def test_batches_with_held_messages_or_unsent_acks_are_not_packed() -> None:
    bench = Bench()
    first, second, third = bench.deliver([0, 1, 2])
    bench.settling.nack(first, 10)
    assert not len(bench.source.snapshot()["packed"]), "two are held"
    bench.settling.ack(second)
    bench.settling.nack(third, 10)
    assert not len(bench.source.snapshot()["packed"]), "an ack waits to be sent"
    bench.flush()
    assert len(bench.source.snapshot()["packed"]) == 1
    bench.settling.ack(first)
    assert not len(bench.source.snapshot()["packed"]), "an ack waits to be sent"
    assert bench.flush() == ([], [(KEY, 0b100)])
    assert len(bench.source.snapshot()["packed"]) == 1


def test_after_a_reconnect_the_acks_of_the_last_moments_are_sent_again() -> None:
    bench = Bench()
    bench.one_waits()
    bench.source.acks.disconnected(bench.now)
    bench.source.disconnected()
    bench.source.reconnected()
    assert bench.flush() == ([], [(KEY, 0b100)])
    assert len(bench.source.snapshot()["packed"]) == 1


def test_after_a_reconnect_acks_sent_long_ago_are_told_when_the_batch_comes() -> None:
    bench = Bench()
    bench.one_waits()
    bench.now += 5_000
    (other, *_) = bench.deliver([0, 1, 2], (1, 2))
    bench.settling.ack(other)
    bench.flush()
    bench.source.acks.disconnected(bench.now)
    bench.source.disconnected()
    bench.source.reconnected()
    assert bench.flush() == ([], [((1, 2), 0b110)])
    assert bench.deliver([0, 1, 2]) == []
    assert bench.flush() == ([], [(KEY, 0b100)])


def test_redeliver_all_brings_it_at_once() -> None:
    bench = Bench()
    bench.one_waits()
    bench.source.release_all()
    bench.source._check()
    assert bench.source.unacked == 0
    (again,) = bench.deliver([0, 1, 2])
    assert (again._index, again.redelivery_count()) == (2, 1)


def test_a_seek_forgets_it() -> None:
    bench = Bench()
    messages = bench.one_waits()
    bench.source.reset()
    bench.source._check()
    bench.settling.ack(messages[2])
    bench.settling.nack(messages[2], 1)
    assert bench.source.unacked == len(bench.source.nacks) == len(bench.source.acks) == 0
    assert len(bench.deliver([0, 1, 2])) == 3


def test_a_pending_nack_inside_a_batch_weighs_under_64_bytes() -> None:
    source = source_state()
    count, size = 10_000, 10
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(count):
            entry, positions = source.arrive((1, number), size, 0, range(size))
            assert entry is not None and len(positions) == size
            nacked = number * 7 % size
            for index in range(size):
                if index != nacked:
                    source.ack(entry, index)
            source.nack(entry, nacked, 60_000 + number, 4)
            if number % 100 == 99:
                source.sent(source.acks.take(number // 10).parts)
        del entry
        source.window.take_lost_parts()
        gc.collect()
        weight, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(source.nacks) == source.unacked == count
    assert weight / count < 64
    due = source.nacks.pop_due(1_000_000)
    assert sum(len(numbers) for _, numbers in source.release(due)) == count


def test_a_nacked_message_takes_few_bytes() -> None:
    assert 0 < bytes_per_nack(1, 500) < 200
    assert 0 < bytes_per_nack(10, 500) < 1_000
