"""Hand-written encodings equal protobuf's, and no entry exceeds a limit."""

from __future__ import annotations

import base64
import struct
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pulsar_encore.errors import ConfigurationError
from pulsar_encore.exceptions import MessageTooBig
from pulsar_encore.transport.native.producer.send_encoder import (
    PlainHeads,
    SendEncoder,
    described_head,
)
from pulsar_encore.values.outgoing_message import OutgoingMessage
from pulsar_encore.wire import FRAME_OVERHEAD, FrameDecoder, decode_batch, decode_body, decompress
from pulsar_encore.wire import pulsar_pb2 as pb
from pulsar_encore.wire.varints import varint

LIMIT = 20_000
NOW_MS = 1_700_000_000_000


def encoder(**changed: Any) -> SendEncoder:
    given: dict[str, Any] = {
        "producer_id": 3,
        "producer_name": "näme",
        "schema_version": b"",
        "codec": pb.NONE,
        "max_message_size": LIMIT,
        "encrypt": None,
    }
    return SendEncoder(**{**given, **changed})


def opened(frame: bytes) -> tuple[pb.CommandSend, pb.MessageMetadata, bytes]:
    """Read a frame like the broker: verify the checksum and decompress the payload."""
    (decoded,) = FrameDecoder(LIMIT + FRAME_OVERHEAD).feed(frame)
    assert decoded.body is not None
    entry = decode_body(decoded.body)
    assert entry.checksum_ok
    metadata = entry.metadata
    payload = decompress(
        metadata.compression, bytes(entry.payload), metadata.uncompressed_size, 10**7
    )
    return decoded.command.send, metadata, bytes(payload)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
keys = st.none() | texts | st.binary(max_size=8)
outgoing = st.builds(
    OutgoingMessage,
    payload=st.none() | st.binary(max_size=300),
    properties=st.none() | st.dictionaries(texts, texts, max_size=3),
    partition_key=keys,
    ordering_key=keys,
    event_timestamp=st.none() | st.integers(0, 2**63 - 1),
)
sequence_ids = st.one_of(
    st.integers(0, 2**63 - 1), st.sampled_from([0, 127, 128, 16383, 16384, 2**35 - 1, 2**35])
)


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), sequence_ids), min_size=1, max_size=20))
def test_plain_heads_equal_protobufs(messages: list[tuple[int, int]]) -> None:
    heads = PlainHeads()
    for size, start in messages:
        for sequence_id in (start, start + 1, start + 127):
            expected = pb.SingleMessageMetadata(payload_size=size, sequence_id=sequence_id)
            data = expected.SerializeToString()
            assert heads.head(size, sequence_id) == struct.pack(">I", len(data)) + data


def check_described(metadata: Any, message: OutgoingMessage) -> None:
    assert {each.key: each.value for each in metadata.properties} == (message.properties or {})
    key = message.partition_key
    assert metadata.HasField("partition_key") == (key is not None)
    assert metadata.partition_key_b64_encoded == isinstance(key, bytes)
    if isinstance(key, bytes):
        assert base64.b64decode(metadata.partition_key) == key
    elif key is not None:
        assert metadata.partition_key == key
    ordering = message.ordering_key
    assert metadata.HasField("ordering_key") == (ordering is not None)
    if ordering is not None:
        plain = ordering if isinstance(ordering, bytes) else ordering.encode()
        assert metadata.ordering_key == plain
    assert metadata.event_time == (message.event_timestamp or 0)
    assert metadata.null_value == (message.payload is None)


@given(outgoing, sequence_ids)
def test_a_batch_message_keeps_all_fields(message: OutgoingMessage, sequence_id: int) -> None:
    payload = message.payload or b""
    batch = described_head(message, sequence_id) + payload
    ((metadata, got),) = decode_batch(batch, 1)
    assert (bytes(got), metadata.sequence_id) == (payload, sequence_id)
    check_described(metadata, message)


@given(
    outgoing,
    sequence_ids,
    st.sampled_from([b"", bytes(8)]),
    st.sampled_from([pb.NONE, pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY]),
    st.none() | st.integers(0, 2**63 - 1),
    st.none() | st.lists(texts, max_size=2),
    st.booleans(),
)
def test_an_unbatched_message_keeps_all_fields(
    message: OutgoingMessage,
    sequence_id: int,
    schema_version: bytes,
    codec: int,
    deliver_at: int | None,
    clusters: list[str] | None,
    disabled: bool,
) -> None:
    message = OutgoingMessage(
        payload=message.payload,
        properties=message.properties,
        partition_key=message.partition_key,
        ordering_key=message.ordering_key,
        event_timestamp=message.event_timestamp,
        deliver_at=deliver_at,
        replication_clusters=clusters,
        disable_replication=disabled,
    )
    frame = encoder(schema_version=schema_version, codec=codec).single(message, sequence_id, NOW_MS)
    send, metadata, payload = opened(frame)
    assert (send.producer_id, send.sequence_id) == (3, sequence_id)
    assert send.num_messages == 1 and not send.HasField("highest_sequence_id")
    assert (metadata.producer_name, metadata.sequence_id) == ("näme", sequence_id)
    assert metadata.publish_time == NOW_MS
    assert metadata.schema_version == schema_version
    assert metadata.HasField("schema_version") == bool(schema_version)
    assert metadata.HasField("deliver_at_time") == (deliver_at is not None)
    assert metadata.deliver_at_time == (deliver_at or 0)
    assert list(metadata.replicate_to) == (["__local__"] if disabled else clusters or [])
    assert not metadata.HasField("num_messages_in_batch")
    assert payload == (message.payload or b"")
    check_described(metadata, message)


@pytest.mark.parametrize("codec", [pb.NONE, pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY])
@pytest.mark.parametrize("by_key", [False, True])
def test_a_batch_keeps_all_messages(codec: int, by_key: bool) -> None:
    heads = PlainHeads()
    contents = [b"payload %d " % each * 3 for each in range(100)]
    parts = [p for at, each in enumerate(contents) for p in (heads.head(len(each), 200 + at), each)]
    first, last = (299, None) if by_key else (200, 299)
    made = encoder(codec=codec, schema_version=b"\x00" * 8)
    frame = made.batch(OutgoingMessage(payload=contents[0]), parts, 100, first, last, NOW_MS)
    send, metadata, payload = opened(frame)
    assert (send.sequence_id, send.num_messages) == (first, 100)
    assert send.HasField("highest_sequence_id") == metadata.HasField("highest_sequence_id")
    assert send.HasField("highest_sequence_id") == (not by_key)
    assert send.highest_sequence_id == metadata.highest_sequence_id == (last or 0)
    assert metadata.num_messages_in_batch == 100
    assert metadata.compression == codec
    assert [bytes(each) for _, each in decode_batch(payload, 100)] == contents


def test_a_payload_that_compression_enlarges_is_sent_uncompressed() -> None:
    message = OutgoingMessage(payload=bytes(range(256)))
    _, metadata, payload = opened(encoder(codec=pb.ZSTD).single(message, 0, NOW_MS))
    assert metadata.compression == pb.NONE and not metadata.uncompressed_size
    assert payload == message.payload


@pytest.mark.parametrize("key", ["text", b"\xff bytes", None])
@pytest.mark.parametrize("ordering_key", ["order", None])
def test_a_batch_has_the_key_of_its_first_message(
    key: str | bytes | None, ordering_key: str | None
) -> None:
    message = OutgoingMessage(payload=b"x", partition_key=key, ordering_key=ordering_key)
    _, alone, _ = opened(encoder().single(message, 0, NOW_MS))
    _, metadata, _ = opened(encoder().batch(message, [b"x"], 2, 0, 1, NOW_MS))
    for name in ("partition_key", "partition_key_b64_encoded", "ordering_key"):
        assert metadata.HasField(name) == alone.HasField(name)
        assert getattr(metadata, name) == getattr(alone, name)


def test_a_plain_batch_has_its_count_right_after_its_publish_time() -> None:
    """Fast consumers look at this offset first: `docs/notes/wire-protocol.md#cost-per-message`."""
    frame = encoder().batch(OutgoingMessage(payload=b"x"), [b"x"], 2, 0, 1, NOW_MS)
    assert b"\x18" + varint(NOW_MS) + b"\x58\x02" in frame


@pytest.mark.parametrize("codec", [pb.NONE, pb.ZLIB])
def test_a_message_over_the_limit_is_an_error(codec: int) -> None:
    payload = bytes(range(256)) * (LIMIT // 256) + bytes(LIMIT % 256)
    assert encoder().single(OutgoingMessage(payload=payload), 0, NOW_MS)
    with pytest.raises(MessageTooBig, match=f"{LIMIT + 1} bytes.*takes {LIMIT}.*chunking_enabled"):
        encoder().single(OutgoingMessage(payload=payload + b"x"), 0, NOW_MS)
    small = encoder(codec=pb.ZLIB).single(OutgoingMessage(payload=bytes(10 * LIMIT)), 0, NOW_MS)
    assert len(small) < LIMIT


def test_metadata_over_the_limit_is_an_error_and_keeps_the_connection() -> None:
    fits = OutgoingMessage(payload=bytes(LIMIT), properties={"k": "v" * (FRAME_OVERHEAD - 200)})
    opened(encoder().single(fits, 0, NOW_MS))
    too_much = OutgoingMessage(payload=bytes(LIMIT), properties={"k": "v" * FRAME_OVERHEAD})
    with pytest.raises(MessageTooBig, match="properties"):
        encoder().single(too_much, 0, NOW_MS)
    with pytest.raises(MessageTooBig, match="metadata of a chunk"):
        huge = OutgoingMessage(payload=bytes(LIMIT), properties={"k": "v" * LIMIT})
        encoder().chunks(huge, 0, NOW_MS)


@given(st.dictionaries(texts | st.text("k", min_size=120, max_size=130), texts, max_size=4))
@example({"": "", "k": "v" * 127, "l": "v" * 128, "m" * 20_000: "v" * 20_000})
def test_properties_are_written_as_protobuf_writes_them(properties: dict[str, str]) -> None:
    message = OutgoingMessage(payload=None, properties=properties, partition_key="k")
    expected = pb.MessageMetadata(
        producer_name="näme", sequence_id=7, publish_time=NOW_MS, partition_key="k", null_value=True
    )
    for name, value in properties.items():
        expected.properties.add(key=name, value=value)
    written = expected.SerializeToString()
    roomy = encoder(max_message_size=10**6)
    assert written in roomy.single(message, 7, NOW_MS)
    assert [written in each for each in roomy.chunks(message, 7, NOW_MS)] == [True]


@pytest.mark.parametrize("properties", [{"a": 1}, {1: "a"}, {"a": None}, {"a": "\ud800"}])
def test_a_property_that_is_no_text_is_an_error(properties: Any) -> None:
    message = OutgoingMessage(payload=b"", properties=properties)
    for encode in (encoder().single, encoder().chunks):
        with pytest.raises(ConfigurationError, match="cannot be sent"):
            encode(message, 0, NOW_MS)
    with pytest.raises(ConfigurationError, match="cannot be sent"):
        described_head(message, 0)


def test_a_message_is_chunked_only_if_an_entry_with_the_fields_of_a_chunk_is_too_small() -> None:
    properties = {"name": "value"}
    counts = {}
    for size in range(LIMIT - FRAME_OVERHEAD - 200, LIMIT - FRAME_OVERHEAD):
        message = OutgoingMessage(payload=bytes(size), properties=properties)
        counts[size] = len(encoder().chunks(message, 7, NOW_MS))
    fields = pb.MessageMetadata(
        producer_name="näme",
        sequence_id=7,
        publish_time=NOW_MS,
        uuid="näme-7",
        num_chunks_from_msg=9_999,
        total_chunk_msg_size=9_999,
        chunk_id=9_999,
    )
    fields.properties.add(key="name", value="value")
    most = LIMIT - FRAME_OVERHEAD - fields.ByteSize()
    assert counts == {size: 1 if size <= most else 2 for size in counts}
    assert set(counts.values()) == {1, 2}


@pytest.mark.parametrize("size", [0, 1, 9_000, 9_999, 30_000, 100_001])
@pytest.mark.parametrize("codec", [pb.NONE, pb.SNAPPY])
def test_chunks_join_to_the_message(size: int, codec: int) -> None:
    payload = bytes(range(251)) * (size // 251) + bytes(size % 251)
    message = OutgoingMessage(payload=payload, properties={"a": "b"}, partition_key=b"\xff")
    frames = encoder(codec=codec).chunks(message, 7, NOW_MS)
    joined = b""
    for number, frame in enumerate(frames):
        (decoded,) = FrameDecoder(LIMIT + FRAME_OVERHEAD).feed(frame)
        send = decoded.command.send
        assert decoded.body is not None
        assert len(decoded.body) <= LIMIT, "storage may take no more than the broker"
        entry = decode_body(decoded.body)
        metadata = entry.metadata
        assert send.sequence_id == metadata.sequence_id == 7
        check_described(metadata, message)
        if len(frames) > 1:
            assert send.is_chunk
            assert metadata.uuid == "näme-7"
            assert (metadata.chunk_id, metadata.num_chunks_from_msg) == (number, len(frames))
        else:
            assert not send.is_chunk and not metadata.HasField("uuid")
        joined += bytes(entry.payload)
    if len(frames) > 1:
        assert metadata.total_chunk_msg_size == len(joined)
    assert decompress(metadata.compression, joined, metadata.uncompressed_size, 10**7) == payload


def test_an_entry_is_encrypted_after_compression_and_each_chunk_separately() -> None:
    seen: list[bytes] = []

    def encrypt(payload: Any, metadata: pb.MessageMetadata) -> bytes:
        seen.append(bytes(payload))
        del metadata.encryption_keys[:]
        metadata.encryption_keys.add(key="k", value=b"wrapped")
        metadata.encryption_param = b"%012d" % len(seen)
        return b"sealed" + bytes(payload)

    sealing = encoder(encrypt=encrypt, codec=pb.ZLIB)
    _, metadata, payload = sent_as_it_is(sealing.single(OutgoingMessage(payload=bytes(1000)), 0, 1))
    assert len(seen[0]) < 100 and payload == b"sealed" + seen[0]
    assert metadata.encryption_param == b"%012d" % 1
    frames = encoder(encrypt=encrypt).chunks(OutgoingMessage(payload=bytes(25_000)), 1, NOW_MS)
    assert [sent_as_it_is(each)[1].encryption_param[-1:] for each in frames] == [b"2", b"3", b"4"]
    assert b"".join(seen[1:]) == bytes(25_000)


def sent_as_it_is(frame: bytes) -> tuple[pb.CommandSend, pb.MessageMetadata, bytes]:
    (decoded,) = FrameDecoder(LIMIT + FRAME_OVERHEAD).feed(frame)
    assert decoded.body is not None
    entry = decode_body(decoded.body)
    return decoded.command.send, entry.metadata, bytes(entry.payload)


def test_the_cost_of_a_plain_message_is_bounded() -> None:
    """The bound holds on slower machines too: the measured cost was about 0.3 us."""
    heads, payload = PlainHeads(), bytes(100)
    parts: list[bytes] = []
    best = 1.0
    for _ in range(5):
        parts.clear()
        start = time.perf_counter()
        for sequence_id in range(1000):
            parts += (heads.head(100, sequence_id), payload)
        encoder().batch(OutgoingMessage(payload=b"x"), parts, 1000, 0, 999, NOW_MS)
        best = min(best, time.perf_counter() - start)
    assert best / 1000 < 20e-6
