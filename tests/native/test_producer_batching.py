"""Batches by count, size and key lose no message and keep order and limits."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_encore.transport.native.producer.send_batches import SendBatches
from pulsar_encore.values.outgoing_message import OutgoingMessage
from pulsar_encore.wire import decode_batch

KEYS = st.sampled_from([None, "a", "b", b"a", b"\xff"])
messages = st.builds(
    OutgoingMessage,
    payload=st.none() | st.integers(0, 60).map(bytes),
    partition_key=KEYS,
    ordering_key=KEYS,
    properties=st.none() | st.just({"k": "v"}),
)


def key(message: OutgoingMessage) -> bytes | None:
    chosen = message.partition_key if message.ordering_key is None else message.ordering_key
    return chosen.encode() if isinstance(chosen, str) else chosen


@given(
    st.lists(st.tuples(messages, st.integers(1, 200), st.booleans()), max_size=60),
    st.integers(2, 8),
    st.integers(1, 300),
    st.booleans(),
)
def test_batches_keep_every_message_the_order_and_the_limits(
    given_: list[tuple[OutgoingMessage, int, bool]], most: int, max_bytes: int, by_key: bool
) -> None:
    batching: Any = SendBatches(max_messages=most, max_bytes=max_bytes, by_key=by_key)
    sent: dict[int, OutgoingMessage] = {}
    taken: list[list[Any]] = []
    sequence_id = -1
    for message, step, time_is_up in given_:
        sequence_id += step
        sent[sequence_id] = message
        if full := batching.add(message, sequence_id, sequence_id):
            taken.append(list(full))
        assert batching.count < most and (batching.size < max_bytes or not batching.count)
        if time_is_up:
            taken.append(batching.take())
    taken.append(batching.take())
    assert (batching.count, batching.size) == (0, 0) and batching.take() == []

    order = [batch for group in taken for batch in group]
    assert sorted(each for batch in order for each in batch.waiters) == sorted(sent)
    assert [batch.last for batch in order] == sorted(batch.last for batch in order)
    if not by_key:
        assert [each for batch in order for each in batch.waiters] == list(sent)
    for batch in order:
        ids = batch.waiters
        assert ids == sorted(ids) and (batch.first, batch.last) == (ids[0], ids[-1])
        assert batch.message is sent[ids[0]]
        assert len(ids) <= most and (batch.size <= max_bytes or len(ids) == 1)
        payload = b"".join(batch.parts)
        assert len(payload) == batch.size
        for sequence_id, (metadata, got) in zip(ids, decode_batch(payload, len(ids)), strict=True):
            assert metadata.sequence_id == sequence_id
            assert bytes(got) == (sent[sequence_id].payload or b"")
        if by_key:
            assert len({key(sent[each]) or b"" for each in ids}) == 1


def test_batches_by_key_keep_the_order_of_each_key() -> None:
    batching: Any = SendBatches(max_messages=6, max_bytes=10_000, by_key=True)
    keys = "abbaca"
    full: list[Any] = []
    for sequence_id, each in enumerate(keys):
        full += batching.add(
            OutgoingMessage(payload=b"x", partition_key=each), sequence_id, sequence_id
        )
    assert [batch.waiters for batch in full] == [[1, 2], [4], [0, 3, 5]]


@pytest.mark.parametrize("by_key", [False, True])
def test_the_cost_of_a_message_is_bounded(by_key: bool) -> None:
    """The bound holds on slower machines too: the measured cost was about 1 us."""
    message, best = OutgoingMessage(payload=bytes(100)), 1.0
    for _ in range(5):
        batching: Any = SendBatches(max_messages=1000, max_bytes=10**6, by_key=by_key)
        start = time.perf_counter()
        for sequence_id in range(1000):
            batching.add(message, sequence_id, sequence_id)
        best = min(best, time.perf_counter() - start)
    assert best / 1000 < 40e-6
