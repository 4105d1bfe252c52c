"""Numbers from a broker or a publisher have bounds, and each error names the option."""

from __future__ import annotations

import re
import tracemalloc
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from native_kit import TOPIC, Rig, run, settle, subscription

import pulsar_encore as encore
from pulsar_encore.authentication import oauth2_issuer as issuer
from pulsar_encore.devbroker.rules.topic_log import LogEntry
from pulsar_encore.errors import ConfigurationError
from pulsar_encore.exceptions import LookupError as TopicLookupError
from pulsar_encore.options import ClientOptions, ConsumerType, ProducerOptions
from pulsar_encore.testing import MemoryTransport
from pulsar_encore.transport.interface import AckPlan, SkipReason
from pulsar_encore.transport.native.client_settings import ClientSettings
from pulsar_encore.transport.native.connection.session import Session
from pulsar_encore.transport.native.consumer.chunked_messages import uuid_of
from pulsar_encore.transport.native.consumer.decryption import Decryption
from pulsar_encore.transport.native.consumer.entry_reader import EntryReader
from pulsar_encore.transport.native.lookup import binary_lookup as binary
from pulsar_encore.transport.native.service_options import of_options
from pulsar_encore.values.message_id import MAX_BATCH_SIZE, MessageId
from pulsar_encore.wire import compress
from pulsar_encore.wire import pulsar_pb2 as pb
from pulsar_encore.wire.entries import BatchError, encode_batch, encode_body

# Partitions


def test_more_partitions_than_the_client_accepts_are_an_error_that_names_the_option() -> None:
    async def main() -> None:
        rig = Rig(settings=ClientSettings(max_partitions=3))
        rig.service.catalogue.create_partitioned(TOPIC, 4)
        text = r": 4 partitions, and this client accepts at most 3: .*max_partitions"
        with pytest.raises(TopicLookupError, match=text):
            await rig.transport.subscribe(subscription())
        with pytest.raises(TopicLookupError, match=text):
            await rig.transport.create_producer(ProducerOptions(topic=TOPIC))
        with pytest.raises(TopicLookupError, match=text):
            await rig.transport.topic_partitions(TOPIC)

    run(main())


def test_as_many_partitions_as_the_client_accepts_are_subscribed() -> None:
    async def main() -> None:
        rig = Rig(settings=ClientSettings(max_partitions=3))
        rig.service.catalogue.create_partitioned(TOPIC, 3)
        transport_consumer, _ = await rig.subscribe()
        assert len(transport_consumer.topic_numbers()) == 3

    run(main())


def test_the_partitions_of_several_topics_together_are_bounded() -> None:
    async def main() -> None:
        rig = Rig(settings=ClientSettings(max_partitions=5))
        topics = (TOPIC, f"{TOPIC}2")
        for topic in topics:
            rig.service.catalogue.create_partitioned(topic, 3)
        with pytest.raises(TopicLookupError, match="6 partitions"):
            await rig.transport.subscribe(subscription(topics=topics))

    run(main())


def test_an_absurd_partition_count_is_refused_before_memory_is_allocated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An answer of 2**32 - 5 partitions once took 22 GB."""

    async def main() -> None:
        rig = Rig()
        ask = binary.Session.request

        async def lying(self: Any, make: Any, doing: str, timeout_s: float | None) -> Any:
            answer = await ask(self, make, doing, timeout_s)
            if doing.startswith("partitions"):
                answer.partitions = 2**32 - 5
            return answer

        monkeypatch.setattr(binary.Session, "request", lying)
        tracemalloc.start()
        try:
            with pytest.raises(TopicLookupError, match="4294967291 partitions"):
                await rig.transport.subscribe(subscription())
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 5_000_000

    run(main())


# Options


def test_the_bounds_are_options_of_the_client() -> None:
    options = ClientOptions(
        service_url="pulsar://h:1", max_partitions=7, max_uncompressed_size=8 << 20
    )
    _, settings = of_options(options)
    assert (settings.max_partitions, settings.max_uncompressed_size) == (7, 8 << 20)
    for name in ("max_partitions", "max_uncompressed_size"):
        for wrong in (0, -1, True, "5", 1.5, None):
            values: dict[str, Any] = {name: wrong}
            with pytest.raises(ConfigurationError, match=name):
                ClientOptions(service_url="pulsar://h:1", **values)


async def test_a_client_accepts_the_bounds() -> None:
    async with encore.Client(
        "pulsar://h:1",
        max_partitions=7,
        max_uncompressed_size=1 << 20,
        transport=MemoryTransport(),
    ):
        pass


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("fields", [{}, {"event_time": 1}, {"partition_key": "k"}])
def test_a_payload_over_max_uncompressed_size_is_acked_and_the_log_names_the_option(
    compressed: bool, fields: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        rig = Rig(settings=ClientSettings(max_uncompressed_size=1_000))
        payload = b"x" * 1_001
        if compressed:
            packed = compress(pb.ZLIB, payload)
            rig.store(packed, compression=pb.ZLIB, uncompressed_size=len(payload), **fields)
        else:
            rig.store(payload, **fields)
        rig.store(b"behind")
        _, listener = await rig.subscribe()
        await settle(5)
        assert b"behind" in listener.payloads
        assert rig.service.catalogue.topic(TOPIC).subscriptions["s"].backlog == 1

    run(main())
    assert "max_uncompressed_size" in caplog.text


def store_chunked(rig: Rig, payload: bytes, count: int, total: int, **fields: Any) -> None:
    size = -(-len(payload) // count)
    for at in range(count):
        piece = payload[at * size : (at + 1) * size]
        rig.store(
            piece,
            uuid="big",
            chunk_id=at,
            num_chunks_from_msg=count,
            total_chunk_msg_size=total,
            **fields,
        )


SIZES = {
    "claimed total": {"total": 3_000},
    "no total": {"total": 0},
    "decompressed": {"compression": pb.ZLIB, "uncompressed_size": 3_000},
}


@pytest.mark.parametrize("case", SIZES)
@pytest.mark.parametrize(
    "kind", [ConsumerType.Shared, ConsumerType.Exclusive, ConsumerType.Failover]
)
def test_a_chunked_message_over_max_uncompressed_size_is_acked_once(
    kind: ConsumerType,
    case: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message was once requested again for ever: 696 MB in a minute, and it was never acked."""
    acks: list[pb.CommandAck] = []
    send = Session.send

    def recorded(session: Session, command: Message) -> None:
        if isinstance(command, pb.CommandAck):
            acks.append(command)
        send(session, command)

    monkeypatch.setattr(Session, "send", recorded)

    async def main() -> None:
        rig = Rig(settings=ClientSettings(max_uncompressed_size=2_000))
        payload, fields = b"x" * 3_000, dict(SIZES[case])
        if "compression" in fields:
            payload = compress(pb.ZLIB, payload)
            fields["total"] = len(payload)
        rig.store(b"before")
        store_chunked(rig, payload, 5, **fields)
        rig.store(b"behind")
        _, listener = await rig.subscribe(consumer_type=kind)
        await settle(100)
        assert sorted(set(listener.payloads)) == [b"before", b"behind"]
        assert rig.service.catalogue.topic(TOPIC).subscriptions["s"].backlog == 2

    run(main())
    refused = [each for each in acks if each.HasField("validation_error")]
    assert {each.validation_error for each in refused} == {pb.CommandAck.UncompressedSizeCorruption}
    assert len({each.message_id[0].entryId for each in refused}) == 5
    (line,) = [each for each in caplog.records if each.levelname == "ERROR"]
    text = line.getMessage()
    assert text.startswith(f"{TOPIC}: ") and re.search(r" \d+:1 is ", text)
    assert "2000" in text and "(max_uncompressed_size)" in text
    assert "3000" in text or case == "no total"
    assert not [each for each in caplog.records if each.levelname == "WARNING"]


@pytest.mark.parametrize("case", SIZES)
def test_a_reader_skips_a_chunked_message_over_max_uncompressed_size(
    case: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        rig = Rig(settings=ClientSettings(max_uncompressed_size=2_000))
        payload, fields = b"x" * 3_000, dict(SIZES[case])
        if "compression" in fields:
            payload = compress(pb.ZLIB, payload)
            fields["total"] = len(payload)
        store_chunked(rig, payload, 5, **fields)
        rig.store(b"behind")
        transport_consumer, listener = await rig.subscribe(
            durable=False,
            consumer_type=ConsumerType.Exclusive,
            start_message_id=MessageId.earliest,
        )
        await settle(100)
        assert listener.payloads == [b"behind"]
        assert "disconnected" not in listener.names
        passed = [each for call in listener.calls if call[0] == "skipped" for each in call[2]]
        assert SkipReason.BROKEN in {each.reason for each in passed}
        assert transport_consumer.is_connected()

    run(main())
    (line,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert "max_uncompressed_size" in line.getMessage()
    assert "passed over" in line.getMessage() and "acked" not in line.getMessage()


# Ids


@pytest.mark.parametrize("where", ["batch_size", "batch_index"])
@pytest.mark.parametrize("value", [MAX_BATCH_SIZE + 1, 2**31 - 1, 2**62])
async def test_an_id_with_an_absurd_batch_size_is_refused_before_memory_is_allocated(
    where: str, value: int
) -> None:
    """A seek to an id with 2**31 - 1 batch messages once took more than a gigabyte."""
    index, size = (value, 0) if where == "batch_index" else (3, value)
    forged = MessageId.deserialize(MessageId(-1, 1, 1, index, batch_size=size).serialize())
    async with (
        encore.Client("pulsar://h:1", transport=MemoryTransport()) as client,
        client.subscribe("t", "s") as consumer,
    ):
        tracemalloc.start()
        try:
            for call in (
                consumer.seek,
                consumer.acknowledge,
                consumer.acknowledge_cumulative,
                consumer.negative_acknowledge,
            ):
                with pytest.raises(ConfigurationError, match=where.replace("_", " ")):
                    result: Any = call(forged)  # type: ignore[operator]
                    if result is not None:
                        await result
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 1_000_000


# Batches


@pytest.mark.parametrize("count", [-(2**31), -1, 0, 41, 2**31 - 1])
def test_a_batch_count_that_the_bytes_cannot_hold_is_a_broken_entry(count: int) -> None:
    """This also holds for an encrypted batch, where only the count is readable.

    The broker subtracts the claimed count from the permits.
    """
    metadata = pb.MessageMetadata(
        producer_name="p",
        sequence_id=1,
        publish_time=1,
        num_messages_in_batch=count,
        encryption_keys=[pb.EncryptionKeys(key="k", value=b"?")],
    )
    body = encode_body(metadata, bytes(40))
    reader = EntryReader(TOPIC, Decryption(subscription()), 1 << 20)
    with pytest.raises(BatchError, match=f"a batch of {count} messages in 40 bytes"):
        reader.open(body, 0, len(body))


@given(st.integers(1, 200), st.integers(0, 2**256 - 1))
def test_a_partly_acked_batch_is_delivered_by_its_ack_set(count: int, mask: int) -> None:
    async def main() -> None:
        rig = Rig()
        messages = [b"%d" % each for each in range(count)]
        transport_consumer, listener = await rig.subscribe()
        topic_consumer = transport_consumer.topic_consumers[0]
        metadata = pb.MessageMetadata(
            producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=count
        )
        payload = encode_batch((pb.SingleMessageMetadata(), each) for each in messages)
        body = encode_body(metadata, payload)
        topic_consumer.on_entry(1, 1, 0, mask, 0, body, 0, len(body))
        topic_consumer.on_entries_end()
        left = [each for each in range(count) if mask >> each & 1]
        assert [list(each.indexes) for each in listener.deliveries] == ([left] if left else [])
        for each in listener.deliveries:
            assert each.ack_set == mask & (1 << count) - 1

    run(main())


def test_a_large_batch_with_a_huge_ack_set_is_linear() -> None:
    """Shifting the ack set for each message once took seconds for a batch of 100,000."""

    async def main() -> None:
        rig = Rig()
        count = 40_000  # The broker allows 50,000 unacked messages.
        metadata = pb.MessageMetadata(
            producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=count
        )
        payload = encode_batch([(pb.SingleMessageMetadata(), b"")] * count)
        state = rig.service.catalogue.topic(TOPIC, create=True)
        state.log.append(LogEntry(encode_body(metadata, payload), batch=count, publish_ms=1))
        transport_consumer, listener = await rig.subscribe(receiver_queue_size=200_000)
        (delivery,) = listener.deliveries
        odd = int.from_bytes(b"\xaa" * (count // 8), "little")
        transport_consumer.ack(
            AckPlan(0, None, [], [(delivery.ledger, delivery.entry, count, odd)])
        )
        await settle()
        transport_consumer.redeliver(0, [(delivery.ledger, [delivery.entry])])
        listener.deliveries.clear()
        await settle()
        (again,) = listener.deliveries
        assert list(again.indexes) == list(range(1, count, 2))
        assert again.ack_set == odd

    run(main())


# Texts and times


def test_a_chunk_uuid_of_any_length_is_stored_in_few_bytes() -> None:
    def of(uuid: str) -> str:
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, uuid=uuid)
        return uuid_of(metadata)

    assert of("producer-1-17") == "producer-1-17"
    assert of("a" * 256) == "a" * 256
    assert len(of("a" * 4_000_000)) == 64
    assert of("a" * 300) != of("a" * 301)


@pytest.mark.parametrize("value", [10**400, "1e999999", float("nan"), -5, None, "soon", []])
def test_an_unreadable_expires_in_is_0_or_infinite(value: Any) -> None:
    assert issuer._lifetime(value) in (0.0, float("inf"))
