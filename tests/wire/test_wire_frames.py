"""The frame decoder: any cut of the stream, every broken frame, and bounded memory."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_encore.errors import ProtocolError
from pulsar_encore.wire import (
    Frame,
    FrameDecoder,
    FrameError,
    base_command,
    encode,
    encode_with_body,
    key_values,
    message_id,
    pb,
)

U64 = st.integers(0, (1 << 64) - 1)
PING = bytes.fromhex("00000009 00000005 0812 920100")


def frame(command: bytes, rest: bytes = b"") -> bytes:
    """Return a frame of any bytes, encoded without the code under test."""
    return struct.pack(">II", 4 + len(command) + len(rest), len(command)) + command + rest


message_ids = st.builds(
    message_id, U64, U64, partition=st.none() | st.integers(-1, 100), batch_index=st.none()
)
bodies = st.binary(min_size=1, max_size=60).filter(lambda b: not b.startswith(b"\x0e\x02"))
plain = (
    st.one_of(
        st.builds(pb.CommandPing),
        st.builds(pb.CommandFlow, consumer_id=U64, messagePermits=st.integers(0, (1 << 32) - 1)),
        st.builds(
            pb.CommandRedeliverUnacknowledgedMessages,
            consumer_id=U64,
            message_ids=st.lists(message_ids, max_size=4),
        ),
        st.builds(pb.CommandLookupTopic, topic=st.text(max_size=20), request_id=U64),
    )
    .map(base_command)
    .map(lambda c: (encode(c), (c, None, None)))
)
with_body = st.one_of(
    st.builds(pb.CommandSend, producer_id=U64, sequence_id=U64),
    st.builds(
        pb.CommandMessage,
        consumer_id=U64,
        message_id=message_ids,
        redelivery_count=st.integers(0, 9),
        ack_set=st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=3),
    ),
).map(base_command)


@st.composite
def payload_frames(
    draw: st.DrawFn,
) -> tuple[bytes, tuple[pb.BaseCommand, bytes | None, bytes | None]]:
    command, body = draw(with_body), draw(bodies)
    extra = draw(st.none() | st.binary(max_size=20))
    return encode_with_body(command, body, broker_entry_metadata=extra), (command, body, extra)


streams = st.lists(plain | payload_frames(), min_size=1, max_size=8)


def shown(frames: list[Frame]) -> list[tuple[pb.BaseCommand, bytes | None, bytes | None]]:
    return [(f.command, f.body, f.broker_entry_metadata) for f in frames]


def feed_in_pieces(decoder: FrameDecoder, data: bytes, cuts: list[int]) -> list[Frame]:
    frames: list[Frame] = []
    edges = [0, *sorted({min(cut, len(data)) for cut in cuts}), len(data)]
    for start, end in itertools.pairwise(edges):
        frames += decoder.feed(data[start:end])
    return frames


def test_ping_has_thirteen_known_bytes() -> None:
    assert encode(pb.CommandPing()) == PING
    (found,) = FrameDecoder().feed(PING)
    assert found.command.type == pb.BaseCommand.PING and found.body is None


@given(streams, st.lists(st.integers(0, 700), max_size=10))
def test_decoded_frames_do_not_depend_on_the_cuts(
    stream: list[tuple[bytes, tuple[pb.BaseCommand, bytes | None, bytes | None]]], cuts: list[int]
) -> None:
    data = b"".join(part for part, _ in stream)
    expected = [parts for _, parts in stream]
    assert shown(FrameDecoder(skip_unknown=False).feed(data)) == expected
    decoder = FrameDecoder()
    assert shown(feed_in_pieces(decoder, data, cuts)) == expected
    assert decoder.buffered == 0


def test_every_single_cut_and_byte_by_byte_gives_the_same_frames() -> None:
    message = base_command(
        pb.CommandMessage(consumer_id=7, message_id=message_id(1, 2), redelivery_count=3)
    )
    body = b"\x0e\x01rest of it"
    data = PING + encode_with_body(message, body, broker_entry_metadata=b"\x08\x01") + PING
    expected = [(base_command(pb.CommandPing()), None, None), (message, body, b"\x08\x01")]
    expected.append((base_command(pb.CommandPing()), None, None))
    for cut in range(len(data) + 1):
        assert shown(feed_in_pieces(FrameDecoder(), data, [cut])) == expected
    assert shown(feed_in_pieces(FrameDecoder(), data, list(range(len(data))))) == expected


def test_bytes_after_a_command_without_payload_are_ignored() -> None:
    (found,) = FrameDecoder().feed(frame(PING[8:], b"more"))
    assert found.command == base_command(pb.CommandPing()) and found.body is None


def test_unknown_fields_are_skipped() -> None:
    (found,) = FrameDecoder(skip_unknown=False).feed(frame(PING[8:] + b"\xa2\x3f\x01x"))
    assert found.command.HasField("ping")


SEND = base_command(pb.CommandSend(producer_id=1, sequence_id=2)).SerializeToString()
BROKEN = {
    "no room for a command": b"\0\0\0\0",
    "frame size 3 ": b"\0\0\0\3abc",
    "negative frame size -1": b"\xff\xff\xff\xff",
    "negative frame size -2147483648": b"\x80\0\0\0",
    "frame of 2147483651 bytes, the limit": b"\x7f\xff\xff\xff",
    "command of 10 bytes in a frame of 9": b"\0\0\0\x09\0\0\0\x0a" + b"12345",
    "command of 4294967295 bytes": b"\0\0\0\x04\xff\xff\xff\xff",
    "undecodable command": frame(b"\xff\xff"),
    "undecodable command: Error": frame(b"\x08\x12\x92\x01\x05"),
    "without a type": frame(b""),
    "without a type$": frame(b"\x92\x01\x00"),
    "unknown command type 99": frame(b"\x08\x63"),
    "unknown command type -1": frame(b"\x08" + b"\xff" * 9 + b"\x01"),
    "PING without its ping": frame(b"\x08\x12"),
    "FLOW without its flow": frame(b"\x08\x0b\x92\x01\x00"),
    "FLOW without required flow.messagePermits": frame(b"\x08\x0b\x5a\x02\x08\x01"),
    # A required enum with an unknown number counts as a missing field.
    "ACK without required ack.ack_type": frame(b"\x08\x0a\x52\x04\x08\x01\x10\x63"),
    "UTF-8": frame(b"\x08\x17\xba\x01\x05\x0a\x01\xff\x10\x01"),
    "SEND without metadata and payload": frame(SEND),
    "ends inside the size of its broker entry metadata": frame(SEND, b"\x0e\x02\0\0\0"),
    "broker entry metadata of 2 bytes, 1 are left": frame(SEND, b"\x0e\x02\0\0\0\x02a"),
    "broker entry metadata of 4294967295": frame(SEND, b"\x0e\x02\xff\xff\xff\xffab"),
    "SEND without metadata and payload$": frame(SEND, b"\x0e\x02\0\0\0\x01a"),
}


@pytest.mark.parametrize("named", BROKEN)
def test_broken_frames_are_errors_wherever_they_are_cut(named: str) -> None:
    data = PING + BROKEN[named]
    for cut in range(len(data)):
        decoder = FrameDecoder(skip_unknown=False)
        before: list[Frame] = []
        with pytest.raises(FrameError, match=named) as raised:
            before += decoder.feed(data[:cut])
            before += decoder.feed(data[cut:])
        assert shown(before + raised.value.frames) == [(base_command(pb.CommandPing()), None, None)]
        with pytest.raises(FrameError, match=named) as again:
            decoder.feed(PING)
        assert again.value.frames == []


def test_text_in_nested_messages_is_checked_too() -> None:
    command = base_command(
        pb.CommandSubscribe(
            topic="t",
            subscription="s",
            subType=pb.CommandSubscribe.Exclusive,
            consumer_id=1,
            request_id=1,
            metadata=key_values({"key": "v"}),
        )
    )
    data = encode(command)
    assert FrameDecoder().feed(data)[0].command == command
    with pytest.raises(FrameError, match="UTF-8"):
        FrameDecoder().feed(data.replace(b"key", b"k\xffy"))


def test_a_client_skips_unknown_types() -> None:
    data = PING + frame(b"\x08\x63\xfa\x7f\x02hi", b"body") + PING
    assert len(FrameDecoder().feed(data)) == 2


def test_the_limit_is_exact_and_includes_the_size_field() -> None:
    send = pb.CommandSend(producer_id=1, sequence_id=1)
    room = 1000 - len(encode_with_body(send, b""))
    decoder = FrameDecoder(1000)
    assert len(decoder.feed(encode_with_body(send, b"x" * room))) == 1
    longer = encode_with_body(send, b"x" * (room + 1))
    decoder.max_frame_size = 1001
    assert len(decoder.feed(longer)) == 1
    decoder.max_frame_size = 1000
    with pytest.raises(FrameError, match="frame of 1001 bytes, the limit is 1000"):
        # The size alone decides. The decoder neither waits for data nor keeps any.
        decoder.feed(longer[:4])


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=30))
def test_at_most_one_frame_is_held(reads: list[bytes]) -> None:
    decoder = FrameDecoder(200)
    for read in reads:
        try:
            decoder.feed(read)
        except FrameError:
            break
        assert decoder.buffered <= 200


def test_a_long_frame_can_arrive_in_many_reads() -> None:
    body = bytes(range(256)) * 4096
    data = encode_with_body(pb.CommandSend(producer_id=1, sequence_id=1), body)
    (found,) = feed_in_pieces(FrameDecoder(), data, list(range(0, len(data), 1000)))
    assert found.body == body


@given(st.binary(max_size=200), st.booleans())
def test_random_bytes_raise_only_protocol_errors(data: bytes, skip: bool) -> None:
    for stream in (data, frame(data[:9], data[9:])):
        try:
            FrameDecoder(skip_unknown=skip).feed(stream)
        except ProtocolError as error:
            assert isinstance(error, FrameError)


@given(streams, st.data())
def test_flipped_bytes_raise_only_protocol_errors(
    stream: list[tuple[bytes, object]], data: st.DataObject
) -> None:
    changed = bytearray(b"".join(part for part, _ in stream))
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    outcomes = []
    for cuts in ([], data.draw(st.lists(st.integers(0, len(changed)), max_size=5))):
        decoder = FrameDecoder()
        frames: list[Frame] = []
        named = ""
        edges = [0, *sorted(cuts), len(changed)]
        try:
            for start, end in itertools.pairwise(edges):
                frames += decoder.feed(bytes(changed[start:end]))
        except FrameError as error:
            frames += error.frames
            named = str(error)
        outcomes.append((shown(frames), named))
    assert outcomes[0] == outcomes[1]


def test_incomplete_commands_cannot_be_encoded() -> None:
    no_body = pb.BaseCommand(type=pb.BaseCommand.FLOW)
    half = pb.BaseCommand(type=pb.BaseCommand.FLOW, flow=pb.CommandFlow(consumer_id=1))
    for command in (pb.BaseCommand(), no_body, half):
        with pytest.raises(FrameError):
            encode(command)
        with pytest.raises(FrameError):
            encode_with_body(command, b"x")
