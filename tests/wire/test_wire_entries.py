"""Entries and batches: round trips, checksums, and every kind of inconsistency."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_encore.wire import (
    BatchError,
    ChecksumError,
    EntryError,
    crc32c,
    decode_batch,
    decode_body,
    encode_batch,
    encode_body,
    metadata_of,
    pb,
    properties,
    text,
)

META = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2)


def naive_crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("data", "crc"),
    [(b"123456789", 0xE3069283), (b"", 0), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43)],
)
def test_crc_has_the_known_values(data: bytes, crc: int) -> None:
    assert crc32c(data) == crc32c(memoryview(data)) == crc


@given(st.binary(max_size=100))
def test_crc_equals_its_definition(data: bytes) -> None:
    assert crc32c(data) == naive_crc32c(data)


metadatas = st.builds(
    pb.MessageMetadata,
    producer_name=st.text(max_size=10),
    sequence_id=st.integers(0, (1 << 64) - 1),
    publish_time=st.integers(0, (1 << 63) - 1),
    num_messages_in_batch=st.none() | st.integers(1, 1000),
    partition_key=st.none() | st.text(max_size=10),
    ordering_key=st.none() | st.binary(max_size=10),
    deliver_at_time=st.none() | st.integers(0, (1 << 63) - 1),
    null_value=st.none() | st.booleans(),
    schema_version=st.none() | st.binary(min_size=8, max_size=8),
)


@given(metadatas, st.binary(max_size=200), st.booleans())
def test_a_body_round_trips(meta: pb.MessageMetadata, payload: bytes, checksum: bool) -> None:
    body = encode_body(meta, payload, checksum=checksum)
    assert body.startswith(b"\x0e\x01") == checksum
    entry = decode_body(body)
    assert (entry.metadata, entry.payload.tobytes()) == (meta, payload)
    assert entry.checksum_ok is (True if checksum else None)
    assert decode_body(memoryview(body), verify=False).checksum_ok is None
    seen = metadata_of(body)
    assert seen == meta
    assert seen.HasField("num_messages_in_batch") == meta.HasField("num_messages_in_batch")


def test_the_bytes_of_a_body() -> None:
    rest = b"\0\0\0\x07\x0a\x01p\x10\x01\x18\x02hello"
    assert encode_body(META, b"hello", checksum=False) == rest
    crc = struct.pack(">I", naive_crc32c(rest))
    assert encode_body(META, b"hello") == b"\x0e\x01" + crc + rest


def test_any_flipped_bit_fails_the_checksum() -> None:
    body = encode_body(META, b"hello")
    for at in range(2, len(body)):
        changed = bytearray(body)
        changed[at] ^= 0x10
        with pytest.raises(ChecksumError) as raised:
            decode_body(changed)
        assert raised.value.validation_error == pb.CommandAck.ChecksumMismatch
    damaged = body[:-1] + b"!"
    assert decode_body(damaged, verify=False).payload.tobytes() == b"hell!"
    assert metadata_of(damaged) == META


def test_a_body_cut_at_any_byte_is_an_error() -> None:
    for body in (encode_body(META, b""), encode_body(META, b"", checksum=False)):
        for cut in range(len(body)):
            with pytest.raises(EntryError):
                decode_body(body[:cut])
            with pytest.raises(EntryError):
                metadata_of(body[:cut])


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"", "ends before its metadata"),
        (b"\x0e\x01\0\0", "ends before its metadata"),
        (b"\xff\xff\xff\xffab", "metadata of 4294967295 bytes, 2 are left"),
        (b"\0\0\0\x02\x08\x08", "undecodable metadata|without its producer name"),
        (b"\0\0\0\x01\xff", "undecodable metadata"),
        (b"\0\0\0\x05\x0a\x01p\x10\x01", "without its producer name, sequence id or publish time"),
        (b"\0\0\0\0", "without its producer name"),
    ],
)
def test_broken_metadata_is_an_error(body: bytes, named: str) -> None:
    with pytest.raises(EntryError, match=named):
        metadata_of(body)


def test_incomplete_metadata_cannot_be_encoded() -> None:
    with pytest.raises(EntryError):
        encode_body(pb.MessageMetadata(producer_name="p"), b"")


def test_an_unknown_codec_is_preserved() -> None:
    meta = pb.MessageMetadata()
    meta.CopyFrom(META)
    meta.compression = 9
    assert metadata_of(encode_body(meta, b"")).compression == 9
    assert META.compression == pb.NONE


singles = st.builds(
    pb.SingleMessageMetadata,
    partition_key=st.none() | st.text(max_size=5),
    null_value=st.none() | st.booleans(),
    compacted_out=st.none() | st.booleans(),
    event_time=st.none() | st.integers(0, 1 << 40),
)
batches = st.lists(st.tuples(singles, st.binary(max_size=30)), min_size=1, max_size=20)


@given(batches)
def test_a_batch_round_trips(batch: list[tuple[pb.SingleMessageMetadata, bytes]]) -> None:
    data = encode_batch(batch)
    found = decode_batch(data, len(batch))
    assert [(meta, payload.tobytes()) for meta, payload in found] == batch
    assert all(meta.payload_size == len(payload) for meta, payload in batch)
    assert decode_batch(bytearray(data), len(batch)) == found
    with pytest.raises(BatchError, match="ends before message"):
        decode_batch(data, len(batch) + 1)
    if len(batch) > 1:
        with pytest.raises(BatchError, match="are left after the"):
            decode_batch(data, len(batch) - 1)


def test_a_batch_cut_at_any_byte_is_an_error() -> None:
    data = encode_batch([(pb.SingleMessageMetadata(partition_key="k"), b"abc")] * 2)
    for cut in range(len(data)):
        with pytest.raises(BatchError) as raised:
            decode_batch(data[:cut], 2)
        assert raised.value.validation_error == pb.CommandAck.BatchDeSerializeError


@pytest.mark.parametrize(
    ("data", "count", "named"),
    [
        (b"", 0, "batch of 0 messages"),
        (b"", -5, "batch of -5 messages"),
        (b"", 2**31 - 1, "ends before message 0 of 2147483647"),
        (b"\xff\xff\xff\xff", 1, "metadata of message 0: 4294967295 bytes, 0 are left"),
        (b"\0\0\0\x01\xff", 1, "undecodable"),
        (b"\0\0\0\x00", 1, "without its payload size"),
        (b"\0\0\0\x02\x18\x05abcd", 1, "payload of message 0: 5 bytes, 4 are left"),
        (b"\0\0\0\x0b\x18" + b"\xff" * 9 + b"\x01", 1, "payload of message 0: -1 bytes"),
        (b"\0\0\0\x02\x18\x00!", 1, "1 bytes are left after the 1 messages"),
    ],
)
def test_broken_batches_are_errors(data: bytes, count: int, named: str) -> None:
    with pytest.raises(BatchError, match=named):
        decode_batch(data, count)


@given(st.binary(max_size=80), st.integers(-1, 5))
def test_random_bytes_raise_only_entry_errors(data: bytes, count: int) -> None:
    for read in (decode_body, metadata_of, lambda body: decode_batch(body, count)):
        try:
            read(data)
        except EntryError as error:
            assert str(error)


def test_invalid_text_of_other_clients_is_decoded() -> None:
    raw = META.SerializeToString() + b"\x22\x07\x0a\x02\xffk\x12\x01v" + b"\x32\x02\xfe!"
    body = struct.pack(">I", len(raw)) + raw
    meta = metadata_of(body)
    assert properties(meta.properties) == {"\ufffdk": "v"}
    assert text(meta.partition_key) == "\ufffd!"
    assert text("plain") == "plain"


def test_payloads_are_views_of_the_received_bytes() -> None:
    body = encode_body(META, encode_batch([(pb.SingleMessageMetadata(), b"abc")]))
    ((_, payload),) = decode_batch(decode_body(body).payload, 1)
    assert payload.obj is body
    assert zlib.crc32(payload) == zlib.crc32(b"abc")
