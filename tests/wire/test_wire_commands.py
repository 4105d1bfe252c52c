"""Commands: the protocol's numbers, and only given fields on the wire."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import Message

from pulsar_encore.wire import (
    BODY_FIELDS,
    NO_REQUEST,
    FrameDecoder,
    base_command,
    encode,
    encode_with_body,
    key_values,
    message_id,
    pb,
    topics_hash,
)

MID = message_id(1, 2)


def filled(kind: Any) -> Message:
    """Return a message with a value in each required field."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        if field.is_required:
            if field.message_type is not None:
                value = filled(type(getattr(message, field.name)))
                getattr(message, field.name).CopyFrom(value)
            else:
                setattr(message, field.name, field.default_value)
    return message


@pytest.mark.parametrize("kind", BODY_FIELDS, ids=pb.BaseCommand.Type.Name)
def test_a_strict_decoder_accepts_every_command(kind: int) -> None:
    command = filled(type(getattr(pb.BaseCommand(), BODY_FIELDS[kind])))
    payload = kind in (pb.BaseCommand.SEND, pb.BaseCommand.MESSAGE)
    data = encode_with_body(command, b"body") if payload else encode(command)
    (found,) = FrameDecoder(skip_unknown=False).feed(data)
    assert found.command.type == kind
    assert found.command == base_command(command)
    assert found.body == (b"body" if payload else None)


def test_a_base_command_is_encoded_unchanged() -> None:
    command = base_command(pb.CommandFlow(consumer_id=1, messagePermits=2))
    assert base_command(command) is command
    assert encode(command) == encode(pb.CommandFlow(consumer_id=1, messagePermits=2))


def test_a_message_that_is_no_command_is_not_wrapped() -> None:
    with pytest.raises(KeyError):
        base_command(MID)


def test_the_body_of_every_type_has_its_number() -> None:
    fields = pb.BaseCommand.DESCRIPTOR.fields_by_number
    numbers = set(pb.BaseCommand.Type.values())
    transactions = set(range(50, 58)) | {62, 63}
    assert numbers == set(range(2, 41)) | transactions | set(range(64, 69))
    assert numbers | {1} == set(fields)


def test_the_bytes_of_a_plain_message_command() -> None:
    # This is consumer 1, ledger 5, entry 6. Partition -1 takes ten bytes; count and ack set are
    # absent.
    data = base_command(
        pb.CommandMessage(consumer_id=1, message_id=message_id(5, 6))
    ).SerializeToString()
    assert data == b"\x08\x09\x4a\x13\x08\x01\x12\x0f\x08\x05\x10\x06\x18" + b"\xff" * 9 + b"\x01"


def test_the_bytes_of_an_ack() -> None:
    # Individual is 0 and required, so it is present. A word of an ack set is not packed.
    one = message_id(5, 6, partition=None, ack_set=[-2])
    data = base_command(
        pb.CommandAck(consumer_id=1, message_id=[one], ack_type=pb.CommandAck.Individual)
    ).SerializeToString()
    words = b"\x28\xfe" + b"\xff" * 8 + b"\x01"
    assert data == b"\x08\x0a\x52\x15\x08\x01\x10\x00\x1a\x0f\x08\x05\x10\x06" + words


def test_absent_fields_stay_absent() -> None:
    command = pb.CommandSubscribe(topic="t", durable=False, priority_level=None, metadata=[])
    assert {field.name for field, _ in command.ListFields()} == {"topic", "durable"}
    assert base_command(pb.CommandPing()).HasField("ping")
    assert not MID.HasField("batch_index") and MID.partition == -1
    assert not message_id(1, 2, partition=None).HasField("partition")


def test_negative_ids_wrap_around() -> None:
    assert message_id(-1, -1).ledgerId == NO_REQUEST == 18446744073709551615


def test_a_mapping_is_written_as_pairs() -> None:
    assert key_values(None) == key_values({}) == []
    assert key_values({"a": "b"}) == [pb.KeyValue(key="a", value="b")]


def test_the_hash_of_a_topic_list_equals_pulsars() -> None:
    # Pulsar 4.2.4 answered with these hashes for these topics.
    names = [
        f"persistent://public/default/pw46446-{end}"
        for end in ("a", "p-partition-0", "p-partition-1")
    ]
    seen = ["00000000", "46855bbd", "92c179ba", "c5697171"]
    assert [topics_hash(names[:count]) for count in range(4)] == seen
    assert topics_hash(reversed(names)) == seen[-1]


def test_enum_numbers_equal_the_protocols() -> None:
    assert (pb.MetadataError, pb.ProducerBusy, pb.TransactionConflict) == (1, 16, 23)
    assert (pb.ProducerFenced, pb.NotAllowedError, pb.TopicTerminatedError) == (25, 22, 15)
    assert len(pb.ServerError.values()) == 26
    assert pb.Schema.Type.Value("Avro") == 4 and pb.Schema.Type.Value("External") == 22
    assert pb.CompressionType.items()[1:] == [("LZ4", 1), ("ZLIB", 2), ("ZSTD", 3), ("SNAPPY", 4)]
    assert pb.CommandSubscribe.Key_Shared == 3 and pb.ExclusiveWithFencing == 3
    assert pb.CommandAck.DecryptionError == 4
