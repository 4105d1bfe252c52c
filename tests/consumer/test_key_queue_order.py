"""A key queue inserts messages that arrive after newer messages of their key."""

from __future__ import annotations

import asyncio
import tracemalloc
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

from consumer_kit import TOPIC

from pulsar_encore.consumer.delivery.receive_queue import ReceiveQueue
from pulsar_encore.consumer.leases.key_queues import KeyQueues
from pulsar_encore.core.due_index import TimeBucketIndex
from pulsar_encore.core.topic_state import TopicState

LONG = 1 << 40


class Keyed:
    """A receive queue of one topic, and its key queues; all messages have one key."""

    def __init__(self) -> None:
        self.topic_state = TopicState(
            object(),
            0,
            TOPIC,
            -1,
            shared=True,
            nacks=TimeBucketIndex(),
            timeouts=TimeBucketIndex(),
            in_order=True,
        )
        self.queue = ReceiveQueue(None, lambda *_: None, ANY, lambda _: None)
        self.key_queues = KeyQueues(self.queue, asyncio.get_running_loop(), 1_000_000)
        self._raw: Any = SimpleNamespace(
            ordering_key=lambda: None, partition_key=lambda: "k", length=lambda: 10
        )

    def arrive(self, *numbers: int) -> None:
        for number in numbers:
            entry, indexes = self.topic_state.arrive((1, number), 0, 0, (0,))
            assert entry is not None
            self.queue.push(entry, indexes, [self._raw])

    def take(self) -> list[int]:
        """Return the entry ids that can be delivered at once."""
        return [
            key_queue.items[0][0].key[1] for key_queue, _ in self.key_queues.take(10, per_key=1)
        ]


async def test_older_messages_that_arrive_late_are_delivered_first() -> None:
    keyed = Keyed()
    keyed.arrive(5, 6, 8, 3, 7, 4)
    order = []
    for _ in range(6):
        ((key_queue, _),) = keyed.key_queues.take(10, per_key=1)
        entry = key_queue.items[0][0]
        order.append(entry.key[1])
        keyed.topic_state.ack(entry, 0)
        keyed.key_queues.lease_ended(key_queue, entry, 0)
    assert order == [3, 4, 5, 6, 7, 8]
    assert keyed.take() == [] and len(keyed.key_queues) == 0


async def test_an_older_message_that_arrives_late_does_not_wait_for_a_failed_newer_one() -> None:
    keyed = Keyed()
    keyed.arrive(5, 6)
    ((key_queue, _),) = keyed.key_queues.take(10, per_key=1)
    entry = key_queue.items[0][0]
    keyed.topic_state.hold_back(entry, 0, due_ms=LONG, bits=0)
    keyed.key_queues.lease_ended(key_queue, entry, 0)
    assert keyed.take() == []
    keyed.arrive(4, 3)
    assert keyed.take() == [3]
    assert keyed.take() == [], "one of a key is out"
    await asyncio.sleep(5)
    assert keyed.take() == []


async def test_older_messages_that_arrive_late_cost_no_copy_of_the_key_queue() -> None:
    keyed = Keyed()
    keyed.arrive(*range(1_000, 31_000))
    while keyed.key_queues.has_more() and len(keyed.key_queues) < 30_000:
        keyed.take()
    keyed.arrive(*range(500))
    tracemalloc.start()
    keyed.take()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(keyed.key_queues) == 30_500
    assert peak < 150_000, "a list of 30,000 is 240 kB"
