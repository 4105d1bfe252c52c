"""The fast decoder of whole batches equals the decoding of each message."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_encore.spark.reader.column_values import ColumnValues
from pulsar_encore.spark.reader.payloads import Payloads
from pulsar_encore.spark.reader.plain_messages import plain_messages
from pulsar_encore.transport.native.consumer.message_views import Batch, BatchMessages
from pulsar_encore.wire import pulsar_pb2 as pb
from pulsar_encore.wire.entries import encode_batch

sizes = st.sampled_from([0, 1, 5, 127, 128, 200, 16_383, 16_384, 70_000])
numbers = st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1))


def batch_of(messages: list[tuple[pb.SingleMessageMetadata, bytes]]) -> BatchMessages:
    encoded = [encode_batch([each]) for each in messages]
    starts = [0]
    for each in encoded[:-1]:
        starts.append(starts[-1] + len(each))
    body = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    return BatchMessages(Batch("", b"", b"".join(encoded), body), starts)


@given(st.lists(st.tuples(sizes, numbers), min_size=1, max_size=60), st.booleans(), st.data())
def test_plain_messages_are_found(
    made: list[tuple[int, int]], numbered: bool, data: st.DataObject
) -> None:
    rng = Random(data.draw(st.integers()))
    messages = [
        (pb.SingleMessageMetadata(sequence_id=at if numbered else None), rng.randbytes(size))
        for size, at in made
    ]
    batch = batch_of(messages)
    kept = sorted(data.draw(st.sets(st.sampled_from(range(len(made))), min_size=1)))
    plain = plain_messages(batch.source.buffer, [batch.places[at] for at in kept])
    assert plain is not None
    payloads = Payloads()
    payloads.add([None, b"before"])
    payloads.add_plain(plain)
    payloads.add([b"behind"])
    expected = [None, b"before", *(messages[at][1] for at in kept), b"behind"]
    assert payloads.to_list() == payloads.arrow().to_pylist() == expected
    assert len(payloads) == len(expected)
    assert payloads.size == sum(len(each) for each in expected if each is not None)
    ids = plain.sequence_ids
    assert (None if ids is None else ids.tolist()) == (
        [made[at][1] for at in kept] if numbered else None
    )


@pytest.mark.parametrize(
    "more",
    [
        {"null_value": True},
        {"partition_key": "k"},
        {"event_time": 5},
        {"ordering_key": b"o"},
        {"properties": [pb.KeyValue(key="a", value="b")]},
        {"partition_key_b64_encoded": True},
        {"null_partition_key": True},
        {"compacted_out": True},
        {"partition_key": "k" * 70_000},
    ],
    ids=lambda more: next(iter(more)),
)
@pytest.mark.parametrize("at", [0, 30, 59])
@pytest.mark.parametrize("sequence_id", [None, 3])
def test_a_message_with_more_fields_is_not_plain(
    more: dict[str, Any], at: int, sequence_id: int | None
) -> None:
    messages = [(pb.SingleMessageMetadata(sequence_id=sequence_id), b"x")] * 60
    messages[at] = (pb.SingleMessageMetadata(sequence_id=sequence_id, **more), b"x")
    batch = batch_of(messages)
    assert plain_messages(batch.source.buffer, batch.places) is None
    before = plain_messages(batch.source.buffer, batch.places[:at] or batch.places[1:])
    assert before is not None


@pytest.mark.parametrize("size", [b"\x85\x80\x80\x80\x10", b"\xff" * 9 + b"\x01", b"\xff" * 40])
def test_a_length_beyond_the_batch_is_not_plain(size: bytes) -> None:
    metadata = b"\x18" + size
    message = len(metadata).to_bytes(4, "big") + metadata + b"abcde"
    assert plain_messages(message * 60, range(0, 60 * len(message), len(message))) is None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=30))
def test_a_column_equals_the_gathered_values(steps: list[tuple[int, int]]) -> None:
    column, once = ColumnValues(pa.int64()), 7
    expected: list[int] = []
    for kind, count in steps:
        some = [len(expected) + at for at in range(count)]
        if kind == 0:
            column.add(some[0])
            expected.append(some[0])
        elif kind == 1:
            column.extend(some)
            expected += some
        elif kind == 2:
            column.repeat(once, count)
            expected += [once] * count
        else:
            column.append(pa.array(some, pa.int32()))
            expected += some
    assert column.take().to_pylist() == expected
    assert column.take().to_pylist() == []


def test_messages_of_a_batch_are_a_sequence() -> None:
    batch = batch_of([(pb.SingleMessageMetadata(sequence_id=at), b"%d" % at) for at in range(5)])
    assert [each.data() for each in batch] == [b"0", b"1", b"2", b"3", b"4"]
    assert [each.data() for each in batch[1:3]] == [b"1", b"2"]
    assert [batch[-1].data(), len(batch[1:3])] == [b"4", 2]
    assert all(
        first.metadata.sequence_id < then.metadata.sequence_id for first, then in pairwise(batch)
    )
    decoded = batch[2].decoded()
    assert (decoded.data(), decoded.length(), decoded.metadata) == (b"2", 1, batch[2].metadata)
    with pytest.raises(IndexError):
        batch[5]
