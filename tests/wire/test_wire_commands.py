"""Commands: numbers as in the protocol, and nothing on the wire that was not given."""

from __future__ import annotations

import pytest

from pulsar_encore.wire import (
    FrameDecoder,
    commands,
    encode,
    encode_with_body,
    pb,
    topics_hash,
)
from pulsar_encore.wire.commands import NO_REQUEST

MID = commands.message_id(1, 2)
EVERY = [
    commands.connect(client_version="c", auth_method_name="token", auth_data=b"t"),
    commands.auth_response(client_version="c", method="token", data=b"new"),
    commands.auth_challenge(method="token", data=b"PulsarAuthRefresh"),
    commands.connected(server_version="s", max_message_size=5242880),
    commands.partitioned_metadata("t", request_id=1, auto_create=False),
    commands.partitioned_metadata_response(1, partitions=0),
    commands.lookup("t", request_id=1),
    commands.lookup_response(1, service_url="pulsar://h:1", proxy_through_service_url=True),
    commands.subscribe(
        "t",
        "s",
        consumer_id=1,
        request_id=2,
        sub_type=pb.CommandSubscribe.Key_Shared,
        start_message_id=MID,
        initial_position=pb.CommandSubscribe.Earliest,
        key_shared=pb.KeySharedMeta(keySharedMode=pb.AUTO_SPLIT),
        subscription_properties={"a": "b"},
    ),
    commands.success(1),
    commands.error(error=pb.AuthenticationError, message="no"),
    commands.flow(1, permits=1000),
    commands.message(1, MID, redelivery_count=1, ack_set=[5], consumer_epoch=0),
    commands.ack(1, [MID], request_id=3, properties={"p": 1}),
    commands.ack_response(1, request_id=3),
    commands.redeliver(1, [MID]),
    commands.seek(1, request_id=1, publish_time_ms=5),
    commands.unsubscribe(1, request_id=1, force=True),
    commands.close_consumer(1),
    commands.close_producer(1, request_id=4),
    commands.producer("t", producer_id=1, request_id=2, metadata={"a": "b"}),
    commands.producer_success(1, producer_name="p", schema_version=b"\0" * 8),
    commands.send(1, sequence_id=0, num_messages=10, highest_sequence_id=9),
    commands.send_receipt(1, sequence_id=0, message_id=MID),
    commands.send_error(1, sequence_id=0, error=pb.ChecksumError, message="no"),
    commands.get_last_message_id(1, request_id=1),
    commands.get_last_message_id_response(1, last_message_id=commands.message_id(-1, -1)),
    commands.get_topics_of_namespace("public/default", request_id=1),
    commands.get_topics_of_namespace_response(1, topics=["a", "b"]),
    commands.get_schema("t", request_id=1),
    commands.get_schema_response(1, error=pb.TopicNotFound, message="none"),
    commands.get_or_create_schema(
        "t", request_id=1, schema=pb.Schema(name="t", schema_data=b"{}", type=pb.Schema.Json)
    ),
    commands.get_or_create_schema_response(1, schema_version=b"\0" * 8),
    commands.reached_end_of_topic(1),
    commands.active_consumer_change(1, is_active=True),
    commands.consumer_stats(1, request_id=1),
    commands.consumer_stats_response(1, available_permits=-9),
    commands.watch_topic_list(
        "public/default", request_id=1, watcher_id=2, topics_pattern="a.*", topics_hash="00000000"
    ),
    commands.watch_topic_list_success(1, watcher_id=2, topics=["a"], topics_hash="00000000"),
    commands.watch_topic_update(2, new_topics=["b"], deleted_topics=["a"], topics_hash="00000000"),
    commands.watch_topic_list_close(2, request_id=3),
    commands.topic_migrated(1, resource_type=pb.CommandTopicMigrated.Consumer, service_url="u"),
    commands.ping(),
    commands.pong(),
]


@pytest.mark.parametrize("command", EVERY, ids=lambda c: pb.BaseCommand.Type.Name(c.type))
def test_every_command_passes_a_strict_decoder(command: pb.BaseCommand) -> None:
    payload = command.type in (pb.BaseCommand.SEND, pb.BaseCommand.MESSAGE)
    data = encode_with_body(command, b"body") if payload else encode(command)
    (found,) = FrameDecoder(skip_unknown=False).feed(data)
    assert found.command == command
    assert found.body == (b"body" if payload else None)


def test_every_constructor_is_tried_above() -> None:
    made = {pb.BaseCommand.Type.Name(command.type).lower() for command in EVERY}
    assert len(made) == len(EVERY) == len(commands.__all__) - len({"NO_REQUEST", "message_id"})


def test_the_body_of_every_type_has_its_number() -> None:
    fields = pb.BaseCommand.DESCRIPTOR.fields_by_number
    numbers = set(pb.BaseCommand.Type.values())
    assert numbers == set(range(2, 41)) | set(range(64, 69))
    assert numbers | {1} == set(fields)


def test_a_plain_message_command_in_bytes() -> None:
    # consumer 1, ledger 5, entry 6; partition -1 takes ten bytes, count and ack set are absent.
    data = commands.message(1, commands.message_id(5, 6)).SerializeToString()
    assert data == b"\x08\x09\x4a\x13\x08\x01\x12\x0f\x08\x05\x10\x06\x18" + b"\xff" * 9 + b"\x01"


def test_an_ack_in_bytes() -> None:
    # Individual is 0 and required, so it is there; an ack set word is not packed.
    one = commands.message_id(5, 6, partition=None, ack_set=[-2])
    data = commands.ack(1, [one]).SerializeToString()
    words = b"\x28\xfe" + b"\xff" * 8 + b"\x01"
    assert data == b"\x08\x0a\x52\x15\x08\x01\x10\x00\x1a\x0f\x08\x05\x10\x06" + words


def test_absent_is_absent() -> None:
    message = commands.message(1, MID).message
    assert not message.HasField("redelivery_count") and not message.ack_set
    assert not message.HasField("consumer_epoch")
    assert commands.message(1, MID, consumer_epoch=0).message.HasField("consumer_epoch")
    subscribe = commands.subscribe("t", "s", consumer_id=1, request_id=1).subscribe
    assert {f.name for f, _ in subscribe.ListFields()} == {
        "topic",
        "subscription",
        "subType",
        "consumer_id",
        "request_id",
    }
    assert not commands.send(1, sequence_id=1).send.HasField("num_messages")
    assert not commands.ack(1, [MID]).ack.HasField("request_id")
    assert commands.redeliver(1).HasField("redeliverUnacknowledgedMessages")
    assert not MID.HasField("batch_index") and MID.partition == -1


def test_below_zero_wraps() -> None:
    assert commands.message_id(-1, -1).ledgerId == NO_REQUEST == 18446744073709551615
    assert commands.close_consumer(1).close_consumer.request_id == NO_REQUEST
    stats = commands.consumer_stats_response(1, available_permits=-9).consumerStatsResponse
    assert stats.availablePermits == (1 << 64) - 9


def test_an_error_makes_a_lookup_fail() -> None:
    good = commands.lookup_response(1, service_url="u").lookupTopicResponse
    bad = commands.lookup_response(1, error=pb.ServiceNotReady, message="m").lookupTopicResponse
    assert (good.response, bad.response) == (1, 2)
    partitions = commands.partitioned_metadata_response(1, error=pb.TopicNotFound)
    assert partitions.partitionMetadataResponse.response == 1


def test_a_close_may_say_where_the_topic_goes() -> None:
    url, tls = "pulsar://b:6650", "pulsar+ssl://b:6651"
    consumer = commands.close_consumer(1, assigned_url=url, assigned_url_tls=tls).close_consumer
    producer = commands.close_producer(1, assigned_url=url).close_producer
    assert consumer.assignedBrokerServiceUrl == url == producer.assignedBrokerServiceUrl
    assert consumer.assignedBrokerServiceUrlTls == tls
    assert not producer.HasField("assignedBrokerServiceUrlTls")


def test_the_hash_of_a_list_of_topics() -> None:
    # What Pulsar 4.2.4 answered for these topics as they came.
    names = [
        f"persistent://public/default/pw46446-{end}"
        for end in ("a", "p-partition-0", "p-partition-1")
    ]
    seen = ["00000000", "46855bbd", "92c179ba", "c5697171"]
    assert [topics_hash(names[:count]) for count in range(4)] == seen
    assert topics_hash(reversed(names)) == seen[-1]


def test_enum_numbers() -> None:
    assert (pb.MetadataError, pb.ProducerBusy, pb.TransactionConflict) == (1, 16, 23)
    assert (pb.ProducerFenced, pb.NotAllowedError, pb.TopicTerminatedError) == (25, 22, 15)
    assert len(pb.ServerError.values()) == 26
    assert pb.Schema.Type.Value("Avro") == 4 and pb.Schema.Type.Value("External") == 22
    assert pb.CompressionType.items()[1:] == [("LZ4", 1), ("ZLIB", 2), ("ZSTD", 3), ("SNAPPY", 4)]
    assert pb.CommandSubscribe.Key_Shared == 3 and pb.ExclusiveWithFencing == 3
    assert pb.CommandAck.DecryptionError == 4
