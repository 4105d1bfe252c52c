"""Measure the memory of nacked messages, for a benchmark and for the test that runs it."""

from __future__ import annotations

import gc
import tracemalloc

from pulsar_encore.core.due_index import TimeBucketIndex, precision_bits
from pulsar_encore.core.topic_state import TopicState


def bytes_per_nack(size: int, count: int = 100_000) -> float:
    """Return the bytes that the core keeps for each of `count` nacked messages.

    Each message is in an entry of `size` messages, and the others of its entry are acked.
    """
    gc.collect()
    tracemalloc.start()
    topic_state = TopicState(
        None,
        0,
        "persistent://public/default/t",
        -1,
        shared=True,
        nacks=TimeBucketIndex(),
        timeouts=TimeBucketIndex(),
    )
    for number in range(count):
        entry, _ = topic_state.arrive((1, number), size if size > 1 else 0, 0, range(size))
        assert entry is not None
        nacked = number * 7 % size
        for index in range(size):
            if index != nacked:
                topic_state.ack(entry, index)
        topic_state.nack(entry, nacked, 60_000 + number, precision_bits(60_000))
        if number % 100 == 99:
            topic_state.pack_sent(topic_state.acks.take(number // 10).parts)
    del entry
    gc.collect()
    weight, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(topic_state.nacks) == count
    return weight / count
