"""Message ids: serialization, order, hash, pickle, and invalid bytes."""

from __future__ import annotations

import copy
import pickle
from itertools import pairwise
from typing import Any

import _pulsar
import pulsar
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_encore import ConfigurationError, MessageId
from pulsar_encore.transport.stock.cpp_ids import from_native

U63 = 2**63 - 1
positions = st.integers(0, 50) | st.integers(0, U63)
indexes = st.integers(-1, 5) | st.integers(-1, 2**31 - 1)

ids = st.builds(
    MessageId,
    st.integers(-1, 100),
    positions,
    positions,
    indexes,
    batch_size=st.integers(0, 2**31 - 1),
)


def fields(message_id: MessageId) -> tuple[object, ...]:
    return (
        message_id.partition(),
        message_id.ledger_id(),
        message_id.entry_id(),
        message_id.batch_index(),
        message_id.batch_size,
        message_id.topic,
        message_id.first_chunk,
    )


@given(ids)
def test_round_trip(message_id: MessageId) -> None:
    assert fields(MessageId.deserialize(message_id.serialize())) == fields(message_id)


@given(ids)
def test_pulsar_client_reads_our_bytes_and_the_reverse(message_id: MessageId) -> None:
    stock = _pulsar.MessageId.deserialize(message_id.serialize())
    assert (stock.ledger_id(), stock.entry_id()) == (message_id.ledger_id(), message_id.entry_id())
    assert stock.partition() == message_id.partition()
    assert stock.batch_index() == message_id.batch_index()
    assert MessageId.wrap(stock) == message_id
    assert fields(MessageId.wrap(stock))[:5] == fields(message_id)[:5]


@given(st.integers(-1, 9), positions, positions, st.integers(-1, 9))
def test_our_bytes_equal_those_of_pulsar_client(
    partition: int, ledger: int, entry: int, index: int
) -> None:
    stock = _pulsar.MessageId(partition, ledger, entry, index)
    again = MessageId.deserialize(stock.serialize())
    assert again == MessageId(partition, ledger, entry, index)


@pytest.mark.parametrize("name", ["earliest", "latest"])
def test_earliest_and_latest_equal_those_of_pulsar_client(name: str) -> None:
    stock = getattr(_pulsar.MessageId, name)
    ours = getattr(MessageId, name)
    assert MessageId.wrap(stock) == ours
    assert MessageId.deserialize(ours.serialize()) == ours


@given(ids, st.text(max_size=8))
def test_pickle_keeps_everything(message_id: MessageId, topic: str) -> None:
    named = message_id.with_topic(topic)
    assert fields(pickle.loads(pickle.dumps(named))) == fields(named)


def test_chunked_ids_keep_their_first_chunk() -> None:
    first = MessageId(2, 7, 3)
    whole = MessageId(2, 7, 9, first_chunk=first)
    again = MessageId.deserialize(whole.serialize(), "topic")
    assert again == whole
    assert again.first_chunk == first
    assert again.first_chunk is not None and again.first_chunk.topic == "topic"
    assert fields(pickle.loads(pickle.dumps(whole)))[:-1] == fields(whole)[:-1]


@given(ids, ids)
def test_equal_ids_hash_alike_and_order_agrees(one: MessageId, other: MessageId) -> None:
    if one == other:
        assert hash(one) == hash(other)
        assert not one < other and not other < one
    assert (one < other) + (other < one) <= 1
    assert (one > other) == (other < one)


def test_order_is_ledger_entry_index_with_the_whole_entry_last() -> None:
    rising = [
        MessageId.earliest,
        MessageId(-1, 1, 0, 0),
        MessageId(-1, 1, 0, 1),
        MessageId(-1, 1, 0, 100),
        MessageId(-1, 1, 0),
        MessageId(-1, 1, 1, 0),
        MessageId(-1, 2, 0),
        MessageId.latest,
    ]
    assert sorted(rising, reverse=True)[::-1] == rising
    assert all(before < after for before, after in pairwise(rising))
    assert all(before <= after for before, after in pairwise(rising))


def test_size_and_topic_do_not_affect_equality() -> None:
    one = MessageId(0, 1, 2, 3, batch_size=9, topic="a")
    assert {one, MessageId(0, 1, 2, 3)} == {one}
    assert one != MessageId(1, 1, 2, 3)
    assert one != "(1,2,0,3)"
    with pytest.raises(TypeError):
        assert one < 3


def test_text() -> None:
    assert str(MessageId(4, 1, 2, 3)) == "1:2:4:3"
    assert repr(MessageId(4, 1, 2)) == "MessageId(1:2:4)"


@given(st.binary(max_size=60))
def test_any_bytes_give_an_id_or_a_configuration_error(data: bytes) -> None:
    try:
        read = MessageId.deserialize(data)
    except ConfigurationError as error:
        assert "id" in str(error)
    else:
        assert MessageId.deserialize(read.serialize()) == read


@given(ids, st.data())
def test_a_cut_id_gives_a_configuration_error_or_another_id(
    message_id: MessageId, data: st.DataObject
) -> None:
    whole = message_id.serialize()
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    try:
        MessageId.deserialize(cut)
    except ConfigurationError:
        return
    assert len(cut) >= 4  # ledger and entry were there


def test_nested_first_chunks_are_refused() -> None:
    """Bad input never overflows the stack."""
    data = MessageId(-1, 1, 1).serialize()
    for _ in range(5_000):
        size = len(data)
        length = bytearray()
        while size > 0x7F:
            length.append(size & 0x7F | 0x80)
            size >>= 7
        length.append(size)
        data = b"\x08\x01\x10\x01\x3a" + bytes(length) + data
    with pytest.raises(ConfigurationError):
        MessageId.deserialize(data)


@pytest.mark.parametrize("item", [None, 3, "1:2:3", object()])
def test_other_objects_are_not_wrapped(item: object) -> None:
    with pytest.raises(ConfigurationError, match="MessageId"):
        MessageId.wrap(item)


@pytest.mark.parametrize("item", [None, "text", 3])
def test_only_bytes_are_deserialized(item: object) -> None:
    with pytest.raises(ConfigurationError, match="bytes"):
        MessageId.deserialize(item)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["partition", "ledger_id", "entry_id", "batch_index"])
@pytest.mark.parametrize("value", ["a", 1.0, True, None])
def test_an_id_needs_integers(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} must be an int"):
        MessageId(**{name: value})


# Code of pulsar-client compares its ids with ours, and uses ids of the stock transport.


def of_stock_transport(message_id: MessageId, topic: str = "") -> MessageId:
    """Return the same id as the stock transport delivers it."""
    return from_native(_pulsar.MessageId.deserialize(message_id.serialize()), topic)


@given(ids, st.text(max_size=8))
def test_code_of_pulsar_client_can_use_ids_of_the_stock_transport(
    message_id: MessageId, topic: str
) -> None:
    native = message_id._msg_id
    assert type(native) is _pulsar.MessageId
    assert native == _pulsar.MessageId.deserialize(message_id.serialize())
    stock_id = from_native(native, topic)
    assert fields(stock_id) == fields(message_id.with_topic(topic))
    assert isinstance(stock_id, pulsar.MessageId) and isinstance(stock_id, MessageId)
    assert not isinstance(message_id, pulsar.MessageId)
    assert MessageId.wrap(stock_id) is stock_id
    assert pulsar.MessageBatch().with_message_id(stock_id)  # accepts no other type


@given(ids, ids)
def test_an_id_of_the_stock_transport_is_equal_to_a_plain_one(
    one: MessageId, other: MessageId
) -> None:
    stock_one, stock_other = of_stock_transport(one), of_stock_transport(other)
    for left, right in (stock_one, other), (one, stock_other), (stock_one, stock_other):
        assert (left == right) is (one == other)
        assert (left != right) is (one != other)
        assert (left < right) is (one < other)
        assert (left <= right) is (one <= other)
        assert (left > right) is (one > other)
        assert (left >= right) is (one >= other)
    assert hash(stock_one) == hash(one)
    assert stock_one in {one} and one in {stock_one}


def test_a_pickle_of_an_id_of_the_stock_transport_is_a_plain_id() -> None:
    stock_id = of_stock_transport(MessageId(0, 1, 2, 3, batch_size=9), "t")
    for again in (pickle.loads(pickle.dumps(stock_id)), copy.deepcopy(stock_id)):
        assert type(again) is MessageId
        assert fields(again) == fields(stock_id)


@given(ids, ids)
def test_ids_of_pulsar_client_compare_as_ours(one: MessageId, other: MessageId) -> None:
    native = _pulsar.MessageId.deserialize(other.serialize())
    wrapped = pulsar.MessageId.wrap(native)
    for theirs in (native, wrapped):
        assert (one == theirs) is (one == other)
        assert (one != theirs) is (one != other)
        assert (one < theirs) is (one < other)
        assert (one <= theirs) is (one <= other)
        assert (one > theirs) is (one > other)
        assert (one >= theirs) is (one >= other)
    assert (wrapped == one) is (other == one)
    assert (wrapped != one) is (other != one)
    # On the left of a plain id, `pulsar.MessageId` orders by its own rule: the partition first.
    stock_id = of_stock_transport(one)
    assert (wrapped < stock_id) is (other < one)
    assert (wrapped >= stock_id) is (other >= one)


@pytest.mark.parametrize("name", ["earliest", "latest"])
def test_earliest_and_latest_are_equal_in_both_directions(name: str) -> None:
    ours, stock = getattr(MessageId, name), getattr(pulsar.MessageId, name)
    assert ours == stock and ours._msg_id == stock


def test_all_comparisons_use_our_order_not_that_of_pulsar_client() -> None:
    low, high = MessageId(0, 1, 2, 3), MessageId(0, 1, 2)
    assert low <= high and high >= low and high > low and low != high
    assert low <= MessageId(0, 1, 2, 3) and low >= MessageId(0, 1, 2, 3)
    for thing in (3, None, "(1,2,0,3)", object()):
        assert low != thing and not low == thing
        for compare in ("__lt__", "__le__", "__gt__", "__ge__"):
            assert getattr(low, compare)(thing) is NotImplemented


def test_an_id_is_immutable() -> None:
    message_id = MessageId(0, 1, 2, 3, batch_size=9, topic="t")
    for again in (copy.copy(message_id), copy.deepcopy(message_id)):
        assert fields(again) == fields(message_id)
        assert hash(again) == hash(message_id)
    for name in ("topic", "batch_size", "first_chunk", "_msg_id"):
        with pytest.raises(AttributeError):
            setattr(message_id, name, None)
    assert not hasattr(message_id, "__dict__")  # holds no C++ object
