"""A batch that only waits is packed into a few bytes, without a visible difference."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any
from unittest.mock import ANY

import pytest
from core_kit import TOPIC, Settling, make_topic_state

from pulsar_encore.consumer.delivery.receive_queue import ReceiveQueue
from pulsar_encore.message import Message
from pulsar_encore.values.message_id import MessageId
from tests.harness.nacked_memory import bytes_per_nack

KEY = (1, 1)


class Bench:
    """One topic state on Shared, settled as a consumer does it, with a clock set by hand."""

    def __init__(self) -> None:
        self.topic_state = make_topic_state()
        self.queue = ReceiveQueue(None, lambda *_: None, ANY, lambda _: None)
        self.settling = Settling(self.topic_state, lambda: self.now)
        self.now = 1_000
        self.held: list[Message] = []

    def deliver(self, indexes: list[int], key: tuple[int, int] = KEY) -> list[Message]:
        """Let a batch of three arrive, and take its wanted messages."""
        entry, positions = self.topic_state.arrive(key, 3, 0, indexes)
        taken = []
        if entry is not None and positions:
            raws: Any = [indexes[position] for position in positions]
            self.queue.push(entry, raws, raws)
            while message := self.queue.take():
                taken.append(message)
        return taken

    def flush(self) -> tuple[list[tuple[int, int]], list[tuple[tuple[int, int], int]]]:
        """Acks leave: whole entries, and (entry, indexes left) of parts."""
        unsent = self.topic_state.acks.take(self.now)
        parts = [(entry.key, entry.remaining()) for entry in unsent.parts]
        self.topic_state.pack_sent(unsent.parts)
        self.topic_state._check()
        return unsent.whole, parts

    def give_back(self, now: int) -> list[tuple[int, list[int]]]:
        self.now = now
        groups = self.topic_state.release(self.topic_state.nacks.pop_due(now))
        self.topic_state._check()
        return groups

    def one_waits(self) -> list[Message]:
        """Indexes 0 and 1 are acked, 2 waits for ten seconds, and all that was sent."""
        messages = self.deliver([0, 1, 2])
        self.settling.ack(messages[0])
        self.settling.ack(messages[1])
        self.settling.nack(messages[2], 10)
        assert self.flush() == ([], [(KEY, 0b100)])
        assert len(self.topic_state.snapshot()["packed"]) == 1
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


def test_an_ack_of_a_packed_message_cancels_its_nack_and_settles_the_batch(
    named: tuple[Bench, Any],
) -> None:
    bench, message = named
    bench.settling.ack(message)
    assert bench.flush() == ([KEY], [])
    assert bench.give_back(100_000) == []
    assert bench.topic_state.unacked == 0


def test_another_nack_of_a_packed_message_moves_its_due_time(named: tuple[Bench, Any]) -> None:
    bench, message = named
    bench.settling.nack(message, 30)
    assert len(bench.topic_state.snapshot()["packed"]) == 1
    assert bench.give_back(11_500) == []
    assert bench.give_back(31_500) == [(1, [1])]


def test_an_ack_of_a_whole_packed_entry_cancels_its_nack(named: tuple[Bench, Any]) -> None:
    bench, _ = named
    bench.settling.ack(MessageId(-1, *KEY, topic=TOPIC))
    assert bench.flush() == ([KEY], [])
    assert bench.give_back(100_000) == []
    assert bench.topic_state.unacked == 0


def test_only_the_nacked_message_of_a_packed_batch_is_redelivered_and_counted() -> None:
    bench = Bench()
    bench.one_waits()
    assert bench.give_back(11_500) == [(1, [1])]
    (again,) = bench.deliver([0, 1, 2])
    assert (again._index, again.redelivery_count()) == (2, 1)
    bench.settling.nack(again, 10)
    assert bench.flush() == ([], [(KEY, 0b100)]), "the broker sent acked messages again"
    del again
    assert bench.give_back(100_000) == [(1, [1])]
    (again,) = bench.deliver([2])
    assert again.redelivery_count() == 2


def test_a_packed_message_still_waits_when_its_batch_arrives_early() -> None:
    bench = Bench()
    bench.one_waits()
    assert bench.deliver([0, 1, 2]) == []
    assert bench.flush() == ([], [(KEY, 0b100)])
    assert len(bench.topic_state.snapshot()["packed"]) == 1
    assert bench.deliver([2]) == []
    assert len(bench.topic_state.snapshot()["packed"]) == 1
    assert bench.give_back(11_500) == [(1, [1])]


def test_only_the_message_object_of_the_last_delivery_can_nack_again() -> None:
    bench = Bench()
    first = bench.one_waits()[2]
    bench.give_back(11_500)
    (second,) = bench.deliver([2])
    bench.settling.nack(second, 10)
    bench.flush()
    assert len(bench.topic_state.snapshot()["packed"]) == 1
    bench.settling.nack(first, 1_000)
    assert bench.give_back(21_000) == []
    assert bench.give_back(21_600) == [(1, [1])]


def test_a_message_object_from_before_a_dropped_record_cannot_nack_again() -> None:
    """A new record counts turns from 0, so the mark that tells two records apart has to survive."""
    bench = Bench()
    old = bench.deliver([0, 1, 2])
    bench.topic_state.release_all()
    entry = bench.topic_state.find(KEY)
    assert entry is not None
    bench.topic_state._drop(entry)  # as the bound on what is away does it
    new = bench.deliver([0, 1, 2])
    for message in new:
        bench.settling.nack(message, 10)
    assert len(bench.topic_state.snapshot()["packed"]) == 1
    bench.settling.nack(old[0], 1_000)
    assert bench.give_back(11_500) == [(1, [1])]
    assert bench.topic_state.unacked == 0


def test_a_batch_with_all_messages_nacked_is_packed_too() -> None:
    bench = Bench()
    for message in bench.deliver([0, 1, 2]):
        bench.settling.nack(message, 10)
    assert len(bench.topic_state.snapshot()["packed"]) == 1
    assert bench.topic_state.unacked == len(bench.topic_state.nacks) == 3
    assert bench.give_back(11_500) == [(1, [1])]
    assert bench.topic_state.unacked == 0


def test_batches_with_held_messages_or_unsent_acks_are_not_packed() -> None:
    bench = Bench()
    first, second, third = bench.deliver([0, 1, 2])
    bench.settling.nack(first, 10)
    assert not len(bench.topic_state.snapshot()["packed"]), "two are held"
    bench.settling.ack(second)
    bench.settling.nack(third, 10)
    assert not len(bench.topic_state.snapshot()["packed"]), "an ack waits to be sent"
    bench.flush()
    assert len(bench.topic_state.snapshot()["packed"]) == 1
    bench.settling.ack(first)
    assert not len(bench.topic_state.snapshot()["packed"]), "an ack waits to be sent"
    assert bench.flush() == ([], [(KEY, 0b100)])
    assert len(bench.topic_state.snapshot()["packed"]) == 1


def test_after_a_reconnect_recent_acks_of_a_packed_batch_are_sent_again() -> None:
    bench = Bench()
    bench.one_waits()
    bench.topic_state.acks.disconnected(bench.now)
    bench.topic_state.disconnected()
    bench.topic_state.reconnected()
    assert bench.flush() == ([], [(KEY, 0b100)])
    assert len(bench.topic_state.snapshot()["packed"]) == 1


def test_after_a_reconnect_old_acks_of_a_packed_batch_are_sent_at_its_redelivery() -> None:
    bench = Bench()
    bench.one_waits()
    bench.now += 5_000
    (other, *_) = bench.deliver([0, 1, 2], (1, 2))
    bench.settling.ack(other)
    bench.flush()
    bench.topic_state.acks.disconnected(bench.now)
    bench.topic_state.disconnected()
    bench.topic_state.reconnected()
    assert bench.flush() == ([], [((1, 2), 0b110)])
    assert bench.deliver([0, 1, 2]) == []
    assert bench.flush() == ([], [(KEY, 0b100)])


def test_release_all_redelivers_a_packed_message_at_once() -> None:
    bench = Bench()
    bench.one_waits()
    bench.topic_state.release_all()
    bench.topic_state._check()
    assert bench.topic_state.unacked == 0
    (again,) = bench.deliver([0, 1, 2])
    assert (again._index, again.redelivery_count()) == (2, 1)


def test_a_seek_discards_a_packed_batch() -> None:
    bench = Bench()
    messages = bench.one_waits()
    bench.topic_state.reset()
    bench.topic_state._check()
    bench.settling.ack(messages[2])
    bench.settling.nack(messages[2], 1)
    assert (
        bench.topic_state.unacked
        == len(bench.topic_state.nacks)
        == len(bench.topic_state.acks)
        == 0
    )
    assert len(bench.deliver([0, 1, 2])) == 3


def test_a_pending_nack_inside_a_batch_takes_under_64_bytes() -> None:
    topic_state = make_topic_state()
    count, size = 10_000, 10
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(count):
            entry, positions = topic_state.arrive((1, number), size, 0, range(size))
            assert entry is not None and len(positions) == size
            nacked = number * 7 % size
            for index in range(size):
                if index != nacked:
                    topic_state.ack(entry, index)
            topic_state.nack(entry, nacked, 60_000 + number, 4)
            if number % 100 == 99:
                topic_state.pack_sent(topic_state.acks.take(number // 10).parts)
        del entry
        topic_state.window.take_lost_parts()
        gc.collect()
        weight, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(topic_state.nacks) == topic_state.unacked == count
    assert weight / count < 64
    due = topic_state.nacks.pop_due(1_000_000)
    assert sum(len(numbers) for _, numbers in topic_state.release(due)) == count


def test_a_nacked_message_takes_few_bytes() -> None:
    assert 0 < bytes_per_nack(1, 500) < 200
    assert 0 < bytes_per_nack(10, 500) < 1_000
