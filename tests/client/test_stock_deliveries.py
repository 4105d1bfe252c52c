"""Grouping native messages into deliveries agrees with reading each message id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import _pulsar
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pulsar_encore.transport.stock.deliveries import Grouper, TopicNames
from pulsar_encore.values.message_id import MessageId


@dataclass(frozen=True)
class Native:
    """The attributes of a native message that the grouper reads; the id is a real native id."""

    id: MessageId
    topic: str
    count: int

    def message_id(self) -> Any:
        return _pulsar.MessageId.deserialize(self.id.serialize())

    def topic_name(self) -> str:
        return self.topic

    def redelivery_count(self) -> int:
        return self.count


def run(
    ledger: int,
    entry: int,
    size: int,
    first: int,
    last: int,
    *,
    count: int = 0,
    partition: int = -1,
) -> list[Native]:
    """The messages first to last of one entry; size 0 for a message that is no batch."""
    topic = "persistent://public/default/t" + (f"-partition-{partition}" if partition >= 0 else "")
    if size == 0:
        return [Native(MessageId(partition, ledger, entry), topic, count)]
    return [
        Native(MessageId(partition, ledger, entry, index, batch_size=size), topic, count)
        for index in range(first, last)
    ]


def flat(natives: list[Native], *, one_queue: bool) -> list[tuple[Any, ...]]:
    """Return the fields of the deliveries for each message, in order."""
    topic_names = TopicNames(("t",))
    found = []
    for delivery in Grouper(topic_names, one_queue=one_queue).group(natives):
        assert len(delivery.indexes) == len(delivery.messages)
        for index, native in zip(delivery.indexes, delivery.messages, strict=True):
            found.append(
                (
                    topic_names.name(delivery.topic_number),
                    delivery.ledger,
                    delivery.entry,
                    delivery.batch_size,
                    index,
                    delivery.redelivery_count,
                    delivery.first_chunk,
                    native,
                )
            )
    return found


def naive(natives: list[Native]) -> list[tuple[Any, ...]]:
    return [
        (
            (native.topic, native.id.partition()),
            native.id.ledger_id(),
            native.id.entry_id(),
            native.id.batch_size,
            max(0, native.id.batch_index()),
            native.count,
            None
            if native.id.first_chunk is None
            else (native.id.first_chunk.ledger_id(), native.id.first_chunk.entry_id()),
            native,
        )
        for native in natives
    ]


BIG = 2**40
runs = st.builds(
    lambda ledger, entry, size, cut, length, count: run(
        ledger, entry, size, min(cut, size), min(cut + length, size), count=count
    ),
    st.sampled_from([0, 1, 127, 128, BIG]),
    st.sampled_from([0, 1, 127, 128, 16_384, BIG]),
    st.sampled_from([0, 1, 2, 5, 130, 300]),
    st.integers(0, 290),
    st.integers(1, 300),
    st.integers(0, 2),
)


@given(st.lists(runs, max_size=6), st.booleans())
@example([run(0, 0, 2, 0, 1), run(0, 0, 2, 1, 2, count=1)], False)
def test_grouping_agrees_with_reading_every_id(parts: list[list[Native]], one_queue: bool) -> None:
    """As in a queue: another delivery does not fill the gaps of an earlier one of its entry."""
    natives: list[Native] = []
    seen: set[tuple[int, int]] = set()
    for part in parts:
        if not part:
            continue
        key = (part[0].id.ledger_id(), part[0].id.entry_id())
        if one_queue and key in seen:
            continue  # `one_queue` excludes an entry twice in one list
        seen.add(key)
        natives += part
    assert flat(natives, one_queue=one_queue) == naive(natives)


@pytest.mark.parametrize("one_queue", [True, False])
def test_a_batch_is_one_delivery(one_queue: bool) -> None:
    natives = run(3, 7, 300, 0, 300) + run(3, 8, 0, 0, 0) + run(3, 9, 300, 120, 300)
    deliveries = Grouper(TopicNames(("t",)), one_queue=one_queue).group(natives)
    assert [(each.entry, len(each.messages)) for each in deliveries] == [(7, 300), (8, 1), (9, 180)]


def test_a_redelivered_batch_is_kept_apart_from_its_first_copy() -> None:
    natives = run(3, 7, 4, 0, 1) + run(3, 8, 0, 0, 0) + run(3, 7, 4, 2, 4, count=1)
    assert flat(natives, one_queue=True) == naive(natives)


@pytest.mark.parametrize("one_queue", [True, False])
def test_the_rest_of_a_batch_from_a_redelivery_has_its_own_count(one_queue: bool) -> None:
    """The queue of several topics keeps the first message of a batch over a reconnect.

    If that message is acked by its id, the redelivery begins with the second.
    """
    natives = run(3, 7, 4, 0, 1) + run(3, 7, 4, 1, 3, count=1) + run(3, 7, 4, 3, 4, count=2)
    assert flat(natives, one_queue=one_queue) == naive(natives)


def test_alternating_partitions_are_kept_apart() -> None:
    pairs = zip(run(3, 0, 4, 0, 4, partition=0), run(9, 0, 4, 0, 4, partition=1), strict=True)
    natives = [native for pair in pairs for native in pair]
    assert flat(natives, one_queue=False) == naive(natives)


def test_a_chunked_message_names_its_first_chunk() -> None:
    first = MessageId(-1, 5, 10)
    natives = [
        Native(MessageId(-1, 5, 12, first_chunk=first), "persistent://public/default/t", 0),
        *run(5, 13, 0, 0, 0),
    ]
    assert [each[6] for each in flat(natives, one_queue=True)] == [(5, 10), None]
