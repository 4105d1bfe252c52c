"""`has_null_value` equals the decoded metadata, also when it does not decode the metadata."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_encore.transport.native.consumer.message_views import Batch, BatchMessage, PlainMessage
from pulsar_encore.wire import encode_batch, encode_body, pb

TOPIC = "t"
U32 = struct.Struct(">I")
ENTRY = encode_body(pb.MessageMetadata(producer_name="", sequence_id=0, publish_time=0), b"")
KEYS = st.sampled_from(["", "H", "HH", "key", "\u0248"])  # "H" is the first byte of a tag, 0x48
NUMBERS = st.integers(0, 2**40) | st.sampled_from([0x48, 0xC8, 0x48C8, 25672])
NULL = st.sampled_from([None, False, True])


def plain(metadata: bytes, payload: bytes = b"") -> PlainMessage:
    return PlainMessage(TOPIC, U32.pack(len(metadata)) + metadata + payload)


def in_batch(metadata: bytes, payload: bytes = b"") -> BatchMessage:
    buffer = b"before" + U32.pack(len(metadata)) + metadata + payload
    return BatchMessage(Batch(TOPIC, ENTRY, buffer), 6)


@given(null=NULL, key=KEYS, sequence_id=NUMBERS, time=NUMBERS, payload=st.binary(max_size=3))
def test_an_unbatched_message_agrees_with_its_metadata(
    null: bool | None, key: str, sequence_id: int, time: int, payload: bytes
) -> None:
    metadata = pb.MessageMetadata(
        producer_name=key, sequence_id=sequence_id, publish_time=time, null_value=null
    )
    message = plain(metadata.SerializeToString(), payload)
    assert message.has_null_value() is bool(null)
    assert message.metadata.sequence_id == sequence_id
    assert message.has_null_value() is bool(null)  # the metadata is decoded now


@given(null=NULL, key=KEYS, sequence_id=NUMBERS, payload=st.binary(max_size=3))
def test_a_batch_message_agrees_with_its_metadata(
    null: bool | None, key: str, sequence_id: int, payload: bytes
) -> None:
    single = pb.SingleMessageMetadata(
        payload_size=len(payload), sequence_id=sequence_id, null_value=null
    )
    if key:
        single.partition_key = key
    message = in_batch(single.SerializeToString(), payload)
    assert message.has_null_value() is bool(null)
    assert message.decoded().has_null_value() is bool(null)


@pytest.mark.parametrize("tag", [b"\xc8\x01\x01", b"\xc8\x81\x00\x01", b"\xc8\x01\x81\x00"])
def test_an_entrys_tag_in_any_encoding_is_found(tag: bytes) -> None:
    head = pb.MessageMetadata(producer_name="", sequence_id=0, publish_time=0).SerializeToString()
    assert plain(head + tag).has_null_value()


@pytest.mark.parametrize("tag", [b"\x48\x01", b"\xc8\x00\x01", b"\xc8\x80\x00\x01"])
def test_a_batch_messages_tag_in_any_encoding_is_found(tag: bytes) -> None:
    head = pb.SingleMessageMetadata(payload_size=0).SerializeToString()
    assert in_batch(head + tag).has_null_value()


def test_null_messages_beside_siblings_are_found() -> None:
    singles = [pb.SingleMessageMetadata(null_value=each) for each in (None, True, False)]
    payloads = (b"\x48", b"", b"")
    buffer = encode_batch(list(zip(singles, payloads, strict=True)))
    batch = Batch(TOPIC, ENTRY, buffer)
    found, at = [], 0
    for payload in payloads:
        found.append(BatchMessage(batch, at).has_null_value())
        at += 4 + U32.unpack_from(buffer, at)[0] + len(payload)
    assert found == [False, True, False]
