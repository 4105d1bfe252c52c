"""The in-place entry parser agrees with the codec, and errors name the defect."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from native_kit import subscription

from pulsar_encore.message import Message, raw_of
from pulsar_encore.transport.native.connection.fast_path import MessageTemplate
from pulsar_encore.transport.native.consumer import ack_commands as encoded
from pulsar_encore.transport.native.consumer.decryption import Decryption
from pulsar_encore.transport.native.consumer.entry_contents import (
    BatchEntry,
    ChunkEntry,
    Marker,
    UndecryptableEntry,
)
from pulsar_encore.transport.native.consumer.entry_reader import EntryReader
from pulsar_encore.transport.native.consumer.message_views import (
    PlainMessage,
    PlainMessages,
    PlainSource,
    UnreadableMessage,
)
from pulsar_encore.wire import ack_set_words, base_command, compress, frames, message_id, pb
from pulsar_encore.wire.entries import (
    EntryError,
    decode_batch,
    decode_body,
    encode_batch,
    encode_body,
)

TOPIC = "persistent://public/default/t"


def reader() -> EntryReader:
    return EntryReader(TOPIC, Decryption(subscription()), 5 * 1024 * 1024)


texts = st.text(max_size=8)
numbers = st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1))
pairs = st.lists(st.builds(pb.KeyValue, key=texts, value=texts), max_size=2)


@st.composite
def metadata(draw: st.DrawFn) -> pb.MessageMetadata:
    """Return metadata of an entry, mostly with few fields."""
    made = pb.MessageMetadata(
        producer_name=draw(st.one_of(st.just("standalone-0-1"), texts, st.just("n" * 200))),
        sequence_id=draw(numbers),
        publish_time=draw(st.one_of(st.just(1_700_000_000_000), numbers)),
    )
    for name, values in {
        "uncompressed_size": st.integers(0, 2**31),
        "event_time": numbers,
        "partition_key": texts,
        "highest_sequence_id": numbers,
        "schema_version": st.binary(max_size=8),
        "null_value": st.booleans(),
        "deliver_at_time": st.integers(0, 2**40),
    }.items():
        if draw(st.integers(0, 6)) == 0:
            setattr(made, name, draw(values))
    if draw(st.integers(0, 4)) == 0:
        made.properties.extend(draw(pairs))
    return made


@st.composite
def singles(draw: st.DrawFn) -> list[tuple[pb.SingleMessageMetadata, bytes]]:
    """Return messages of a batch, mostly alike."""
    alike = draw(st.booleans())
    size = draw(st.sampled_from([0, 1, 100, 127, 128, 300, 20_000]))
    made = []
    for at in range(draw(st.integers(1, 12))):
        one = pb.SingleMessageMetadata(payload_size=0)
        if draw(st.booleans()):
            one.sequence_id = at
        if not alike and draw(st.integers(0, 3)) == 0:
            one.partition_key = draw(texts)
        if not alike and draw(st.integers(0, 3)) == 0:
            one.event_time = draw(numbers)
        if not alike and draw(st.integers(0, 5)) == 0:
            one.properties.extend(draw(pairs))
        if not alike and draw(st.integers(0, 5)) == 0:
            one.compacted_out = draw(st.booleans())
        made.append((one, bytes(size if alike else draw(st.integers(0, 200)))))
    return made


@given(st.lists(st.tuples(metadata(), st.binary(max_size=40), st.booleans()), max_size=6))
def test_plain_messages_equal_the_codecs_result(
    entries: list[tuple[pb.MessageMetadata, bytes, bool]],
) -> None:
    opening = reader()
    for made, payload, checksum in entries:
        body = encode_body(made, payload, checksum=checksum)
        opened = opening.open(b"before" + body + b"after", 6, 6 + len(body))
        assert isinstance(opened, PlainMessage)
        assert opened.data() == payload
        assert opened.length() == len(payload)
        assert opened.metadata == made == decode_body(body).metadata
        assert opened.publish_timestamp() == made.publish_time
        assert opened.properties() == {pair.key: pair.value for pair in made.properties}
        assert opened.partition_key() == made.partition_key
        assert opened.event_timestamp() == made.event_time


@given(metadata(), singles(), st.sampled_from([pb.NONE, pb.ZLIB, pb.LZ4, pb.ZSTD, pb.SNAPPY]))
def test_batches_equal_the_codecs_result(
    made: pb.MessageMetadata, messages: list[tuple[pb.SingleMessageMetadata, bytes]], codec: Any
) -> None:
    payload = encode_batch(messages)
    made.num_messages_in_batch = len(messages)
    if codec != pb.NONE:
        made.compression = codec
        made.uncompressed_size = len(payload)
    body = encode_body(made, compress(codec, payload))
    opened = reader().open(body, 0, len(body))
    assert isinstance(opened, BatchEntry)
    assert opened.batch_size == len(messages)
    expected = [
        (at, single, bytes(data))
        for at, (single, data) in enumerate(decode_batch(payload, len(messages)))
        if not single.compacted_out
    ]
    indexes = opened.indexes or range(len(opened.messages))
    assert [
        (at, message.metadata, message.data())
        for at, message in zip(indexes, opened.messages, strict=True)
    ] == expected
    assert [message.length() for message in opened.messages] == [
        len(data) for _, _, data in expected
    ]


@given(
    st.lists(st.tuples(st.integers(1, 300), st.sampled_from([5, 40, 200])), min_size=1, max_size=4),
    st.integers(0, 20_000),
    st.randoms(use_true_random=False),
)
def test_long_batches_of_similar_messages_equal_the_codecs_result(
    stretches: list[tuple[int, int]], first: int, rng: Random
) -> None:
    """Runs of messages have one size, except for the width of their sequence ids."""
    sizes = [size for count, size in stretches for _ in range(count)]
    messages = [
        (pb.SingleMessageMetadata(sequence_id=first + at), rng.randbytes(size))
        for at, size in enumerate(sizes)
    ]
    for at in rng.sample(range(len(sizes)), rng.randint(0, 2) % len(sizes)):
        messages[at] = (pb.SingleMessageMetadata(partition_key="k"), messages[at][1])
    body = encode_body(
        pb.MessageMetadata(
            producer_name="p", sequence_id=1, publish_time=2, num_messages_in_batch=len(messages)
        ),
        encode_batch(messages),
    )
    opened = reader().open(body, 0, len(body))
    assert isinstance(opened, BatchEntry)
    assert [(each.metadata.sequence_id, each.data()) for each in opened.messages] == [
        (single.sequence_id, payload) for single, payload in messages
    ]
    with pytest.raises(EntryError):
        reader().open(body[6:], 0, len(body) - 7)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 2, 10, 40]),
            st.sampled_from([5, 100, 300]),
            st.sampled_from([0, 125, 16_380]),
            st.sampled_from(["equal", "shorter", "flag", "count"]),
        ),
        min_size=2,
        max_size=8,
    )
)
def test_a_batch_is_read_the_same_after_other_batches(
    batches: list[tuple[int, int, int, str]],
) -> None:
    """The reader remembers the layout of the last batch. A new reader remembers nothing."""
    used = reader()
    for count, size, first, change in batches:
        messages = [
            (pb.SingleMessageMetadata(sequence_id=first + at), bytes(size)) for at in range(count)
        ]
        if change == "shorter":  # the sizes differ, and the batch has as many bytes as without
            messages[0] = (messages[0][0], bytes(size - 1))
            messages[-1] = (messages[-1][0], messages[-1][1] + b"\0")
        elif change == "flag":
            messages[-1] = (pb.SingleMessageMetadata(compacted_out=True), bytes(size))
        made = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2)
        made.num_messages_in_batch = count + (change == "count")
        body = encode_body(made, encode_batch(messages))
        assert read_batch(used, body) == read_batch(reader(), body)


def read_batch(opening: EntryReader, body: bytes) -> Any:
    """Return the messages of a batch, or the text of the error."""
    try:
        opened = opening.open(body, 0, len(body))
    except EntryError as error:
        return str(error)
    assert isinstance(opened, BatchEntry)
    messages = [(each.metadata, each.data()) for each in opened.messages]
    return opened.batch_size, opened.indexes, messages


@pytest.mark.parametrize("count", [1, 30, 37, 38, 60, 600])
@pytest.mark.parametrize("byte", [b"\xff", b"\0", b"\x18"])
def test_a_batch_of_one_repeated_byte_is_an_entry_error(count: int, byte: bytes) -> None:
    made = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2)
    made.num_messages_in_batch = count
    body = encode_body(made, byte * 600)
    with pytest.raises(EntryError):
        reader().open(body, 0, len(body))


@given(singles(), st.randoms(use_true_random=False))
def test_a_corrupted_entry_raises_an_entry_error_or_is_still_readable(
    messages: list[tuple[pb.SingleMessageMetadata, bytes]], rng: Random
) -> None:
    made = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2)
    made.num_messages_in_batch = len(messages)
    body = bytearray(encode_body(made, encode_batch(messages), checksum=False))
    for _ in range(rng.randint(1, 3)):
        body[rng.randrange(len(body))] = rng.randrange(256)
    damaged = bytes(body[: rng.randint(0, len(body))] if rng.random() < 0.3 else body)
    try:
        opened = reader().open(damaged + b"\0", 0, len(damaged))
    except EntryError:
        return
    if isinstance(opened, BatchEntry):
        for message in opened.messages:
            assert len(message.data()) == message.length()


def test_a_wrong_checksum_is_reported() -> None:
    made = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2)
    body = bytearray(encode_body(made, b"payload"))
    body[-1] ^= 1
    with pytest.raises(EntryError) as broken:
        reader().open(bytes(body), 0, len(body))
    assert broken.value.validation_error == pb.CommandAck.ChecksumMismatch


@given(metadata(), st.booleans(), st.randoms(use_true_random=False))
def test_broken_metadata_is_an_entry_error_and_never_one_at_access(
    made: pb.MessageMetadata, keyed: bool, rng: Random
) -> None:
    if keyed:
        made.partition_key = "key"
        made.properties.add(key="name", value="value")
    data = bytearray(made.SerializeToString())
    for _ in range(rng.randint(1, 3)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    body = len(data).to_bytes(4, "big") + bytes(data) + b"payload"
    try:
        expected: pb.MessageMetadata | None = decode_body(body).metadata
    except EntryError:
        expected = None
    try:
        opened = reader().open(body, 0, len(body))
    except EntryError:
        return
    if type(opened) is PlainMessage:
        assert opened.metadata == expected
        opened.properties()
        opened.partition_key_bytes()


def plain_run(bodies: list[bytes]) -> tuple[MessageTemplate, bytes]:
    """Return MESSAGE frames with these bodies, and the template of their commands."""
    commands = [
        base_command(pb.CommandMessage(consumer_id=1, message_id=message_id(7, entry)))
        for entry in range(len(bodies))
    ]
    template = MessageTemplate.of(commands[0].SerializeToString())
    assert template is not None
    return template, b"".join(
        frames.encode_with_body(command.message, body)
        for command, body in zip(commands, bodies, strict=True)
    )


@given(st.lists(metadata(), min_size=1, max_size=8))
def test_a_run_of_frames_equals_the_codecs_result(entries: list[pb.MessageMetadata]) -> None:
    bodies = [encode_body(made, b"payload") for made in entries]
    template, data = plain_run(bodies)
    positions: list[tuple[int, int]] = []
    messages: list[PlainMessage] = []
    opening, at = reader(), 0
    while at < len(data):
        places: list[bytes] = []
        taken = opening.take_run(template, 7, data, at, len(data), len(data), positions, places)
        messages += PlainMessages(opening.plain_source, places)
        if taken == at:  # as the session does with a frame that no run may contain
            body = bodies[len(messages)]
            taken = at + 4 + int.from_bytes(data[at : at + 4], "big")
            positions.append((7, len(messages)))
            opened = opening.open(body, 0, len(body))
            assert isinstance(opened, PlainMessage)
            messages.append(opened)
        at = taken
    assert positions == [(7, entry) for entry in range(len(entries))]
    for message, made in zip(messages, entries, strict=True):
        assert message.metadata == made
        assert message.data() == b"payload"


def test_messages_with_keys_and_properties_join_a_run() -> None:
    entries = []
    for number in range(128):
        made = pb.MessageMetadata(producer_name="p", sequence_id=number)
        made.publish_time = 1_700_000_000_000 + number
        made.partition_key = f"key-{number}"
        made.properties.add(key="trace", value="x" * (number % 100))
        made.event_time, made.schema_version, made.ordering_key = number, b"1", b"\xff"
        entries.append(made)
    template, data = plain_run([encode_body(made, b"payload") for made in entries])
    opening = reader()
    bodies: list[bytes] = []
    assert opening.take_run(template, 7, data, 0, len(data), len(data), [], bodies) == len(data)
    messages = PlainMessages(opening.plain_source, bodies)
    assert [each.partition_key() for each in messages] == [each.partition_key for each in entries]
    assert [each.data() for each in messages[1:3]] == [b"payload"] * 2


def test_a_message_of_a_run_is_opened_once_at_its_first_access() -> None:
    made = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, partition_key="k")
    source = PlainSource("persistent://public/default/t")
    message = Message(source, None, None, 0, 0, 0, encode_body(made, b"payload")[6:])
    assert (message.data(), message.partition_key()) == (b"payload", "k")
    assert message.topic_name() == "persistent://public/default/t"
    opened = raw_of(message)
    assert opened is raw_of(message)  # and so its metadata is decoded once


def test_markers_and_chunks_are_distinguished() -> None:
    made = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, marker_type=21)
    body = encode_body(made, b"")
    assert reader().open(body, 0, len(body)) == Marker(21)
    made = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2)
    made.num_chunks_from_msg, made.chunk_id, made.uuid = 2, 0, "p-1"
    body = encode_body(made, b"half")
    opened = reader().open(body, 0, len(body))
    assert isinstance(opened, ChunkEntry)
    assert (opened.payload, opened.metadata.uuid) == (b"half", "p-1")


def test_an_unavailable_codec_is_an_error_of_the_message() -> None:
    """The codec drops unknown enum numbers, so the highest known one stands for an unknown one."""
    made = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2)
    unreadable = UnreadableMessage(
        TOPIC, encode_body(made, b"x", checksum=False), made, ValueError("no")
    )
    with pytest.raises(ValueError, match="no"):
        unreadable.data()
    assert unreadable.length() == 1


# Commands


entry_ids = st.one_of(st.integers(0, 300), st.integers(2**14 - 2, 2**21 + 2), st.integers(0, 2**40))
ids = st.tuples(st.integers(0, 2**62), entry_ids)


def decoded(data: bytes) -> pb.BaseCommand:
    (frame,) = frames.FrameDecoder(10**9).feed(data)
    return frame.command


def plain(places: list[tuple[int, int]]) -> list[pb.MessageIdData]:
    return [message_id(ledger, entry, partition=None) for ledger, entry in places]


@given(
    st.integers(0, 2**40),
    st.lists(ids, max_size=20),
    st.lists(st.tuples(ids, st.integers(1, 200)), max_size=4),
    st.one_of(st.none(), st.integers(0, 2**62)),
    st.randoms(use_true_random=False),
)
def test_hand_written_acks_equal_protobufs(
    consumer: int,
    whole: list[tuple[int, int]],
    parts: list[tuple[tuple[int, int], int]],
    request: int | None,
    rng: Random,
) -> None:
    partial = [(ledger, entry, size, rng.randrange(1 << size)) for (ledger, entry), size in parts]
    expected = plain(whole) + [
        message_id(ledger, entry, partition=None, ack_set=ack_set_words.to_words(mask, size))
        for ledger, entry, size, mask in partial
    ]
    made = decoded(encoded.individual_acks(consumer, whole, partial, request))
    assert made == base_command(
        pb.CommandAck(
            consumer_id=consumer,
            message_id=expected,
            request_id=request,
            ack_type=pb.CommandAck.Individual,
        )
    )


@given(st.integers(0, 2**40), st.lists(ids, max_size=20), st.one_of(st.none(), numbers))
def test_hand_written_redelivery_requests_equal_protobufs(
    consumer: int, places: list[tuple[int, int]], epoch: int | None
) -> None:
    made = decoded(encoded.redeliver(consumer, places, epoch))
    assert made == base_command(
        pb.CommandRedeliverUnacknowledgedMessages(
            consumer_id=consumer, message_ids=plain(places), consumer_epoch=epoch
        )
    )


@given(st.integers(0, 2**40), st.one_of(ids, st.just((7, -1))))
def test_hand_written_cumulative_acks_equal_protobufs(
    consumer: int, place: tuple[int, int]
) -> None:
    made = decoded(encoded.cumulative_ack(consumer, *place, 9))
    expected = message_id(*place, partition=None)
    assert made == base_command(
        pb.CommandAck(
            consumer_id=consumer,
            message_id=[expected],
            ack_type=pb.CommandAck.Cumulative,
            request_id=9,
        )
    )


def test_the_error_of_an_undecryptable_entry_does_not_keep_its_bytes() -> None:
    made = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1_700_000_000_000)
    made.encryption_keys.add(key="k", value=b"x")
    found = reader().open(encode_body(made, bytes(1000)), 0, len(encode_body(made, bytes(1000))))
    assert isinstance(found, UndecryptableEntry)
    assert found.error.__traceback__ is None
