"""Random histories of a receive queue to which messages are given back, against a plain list."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any
from unittest.mock import ANY

import pytest

from pulsar_encore.consumer.delivery.receive_queue import ReceiveQueue
from pulsar_encore.core.due_index import TimeBucketIndex
from pulsar_encore.core.message_states import QUEUED
from pulsar_encore.core.topic_state import TopicState
from pulsar_encore.message import Message, held, raw_of


class Raw:
    """A message of the transport, named by its topic and position."""

    def __init__(self, topic: int, entry: int, index: int) -> None:
        self.place = (topic, entry, index)

    def length(self) -> int:
        return 10


class Played:
    """One random history: two topics, a queue, and the messages that the application holds."""

    def __init__(self, rng: Random, *, by_topic: bool) -> None:
        self.rng = rng
        self.by_topic = by_topic
        self.states = [
            TopicState(
                object(),
                number,
                f"persistent://public/default/t{number}",
                -1,
                shared=True,
                nacks=TimeBucketIndex(),
                timeouts=TimeBucketIndex(),
            )
            for number in range(2)
        ]
        self.permits: Counter[int] = Counter()
        self.queue = ReceiveQueue(None, self._consumed, ANY, lambda _: None)
        self.entries = [0, 0]
        self.pushed: Counter[int] = Counter()
        self.held: list[Message] = []
        self.received = 0

    def _consumed(self, topic_number: int, messages: int) -> None:
        self.permits[topic_number] += messages

    def push(self) -> None:
        topic = self.rng.randrange(2)
        state = self.states[topic]
        first = self.entries[topic]
        size = self.rng.choice([0, 0, 1, 3, 150])
        if size:
            entry, _ = state.arrive((1, first), size, 0, range(size))
            assert entry is not None
            self.queue.push(entry, range(size), [self._raw(topic, first, at) for at in range(size)])
            self.entries[topic] += 1
        else:
            count = self.rng.choice([1, 2, 120])
            entries = state.arrive_first([(1, first + at) for at in range(count)])
            if entries:
                raws = [self._raw(topic, first + at, 0) for at in range(len(entries))]
                self.queue.push_run(entries, raws)
            self.entries[topic] += len(entries)
            size = len(entries)
        self.pushed[topic] += size

    def _raw(self, *place: int) -> Any:
        return Raw(*place)

    def take(self) -> None:
        rng, queue = self.rng, self.queue
        before = self.waiting()
        how = rng.choice(
            ["one", "many", "weighed", "prepared", *["topic", "retried"] * self.by_topic]
        )
        if how == "one":
            message = queue.take()
            taken = [] if message is None else [message]
        elif how == "topic":
            taken = queue.take_of({rng.randrange(2)}, rng.choice([1, 5, 200]))
        elif how == "retried":
            taken = queue.take_retried(3)
        else:
            if how == "prepared":
                list(queue.prepare(200, 0))
            taken = queue.take_many(rng.choice([1, 7, 300]), 35 if how == "weighed" else 0)
        self.received += len(taken)
        self.held += taken
        assert self.waiting() == before - Counter(map(place_of, taken))
        for topic in range(2):  # in the order of each topic, as long as nothing else was chosen
            places = [place for place in map(place_of, taken) if place[0] == topic]
            assert places == sorted(places)
            left = [place for place in self.waiting() if place[0] == topic]
            if places and left and not self.by_topic:
                assert places[-1] < min(left)

    def waiting(self) -> Counter[tuple[int, int, int]]:
        return Counter(
            (state.number, entry.key[1], index)
            for state in self.states
            for entry in state.table.entries.values()
            for index, each in enumerate(entry.state)
            if each == QUEUED
        )

    def settle(self) -> None:
        self.rng.shuffle(self.held)
        for _ in range(self.rng.randrange(4)):
            if self.held:
                message = self.held.pop()
                entry, index, _, number = held(message) or (ANY,) * 4
                state = entry.topic_state
                assert state.holds(entry, index, number)
                if self.rng.random() < 0.3:
                    state.ack(entry, index)
                else:
                    assert state.requeue_unfailed(entry, index)
                    self.queue.put_back(entry, index, raw_of(message))

    def drop(self) -> None:
        state = self.rng.choice(self.states)
        state.disconnected()
        self.queue.drop([state])
        self.entries[state.number] += 1

    def play(self) -> None:
        steps = [self.push, self.take, self.take, self.settle, self.settle]
        for _ in range(60):
            self.drop() if self.rng.random() < 0.03 else self.rng.choice(steps)()
            assert self.queue.received == self.received
            for state in self.states:
                state._check()
        while self.waiting():
            self.take()
        while self.queue.take() is not None:
            raise AssertionError("a message was taken that is not queued")
        assert self.permits == self.pushed


def place_of(message: Message) -> tuple[int, int, int]:
    raw: Any = raw_of(message)
    place: tuple[int, int, int] = raw.place
    return place


@pytest.mark.parametrize("by_topic", [False, True])
@pytest.mark.parametrize("seed", range(150))
def test_messages_given_back_are_taken_in_order_and_counted(seed: int, by_topic: bool) -> None:
    Played(Random(seed), by_topic=by_topic).play()
