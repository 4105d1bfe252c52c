"""`testing.message` makes a received message, and `testing.letters` reads stored letters."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore import testing
from pulsar_encore.schema import StringSchema

NOON = datetime(2026, 5, 1, 12, 0, 0, 250_000, tzinfo=UTC)


def test_a_made_message_has_the_given_properties() -> None:
    message = testing.message(
        b"data",
        attempt=3,
        key="customer",
        properties={"trace": "1"},
        topic="orders-partition-2",
        published_at=NOON,
        event_at=NOON + timedelta(seconds=1),
    )
    assert message.value() == message.data() == b"data"
    assert message.redelivery_count() == 2
    assert message.partition_key() == "customer"
    assert message.partition_key_bytes() == b"customer"
    assert message.properties() == {"trace": "1"}
    assert message.topic_name() == "persistent://public/default/orders-partition-2"
    assert message.message_id().partition() == 2
    assert message.publish_timestamp() == int(NOON.timestamp() * 1000)
    assert message.event_timestamp() == message.publish_timestamp() + 1000
    assert not message.has_null_value()
    assert message.encryption_context() is None
    assert "4 bytes" in repr(message)


def test_a_made_message_has_the_defaults_of_a_first_delivery() -> None:
    before = datetime.now(UTC)
    first, second = testing.message(), testing.message(b"")
    assert first.value() == b""
    assert first.redelivery_count() == 0
    assert first.partition_key() == "" and first.partition_key_bytes() is None
    assert first.properties() == {}
    assert first.event_timestamp() == 0
    assert first.message_id() != second.message_id()
    assert abs(first.publish_timestamp() - before.timestamp() * 1000) < 60_000


def test_a_message_made_in_virtual_time_is_published_at_the_virtual_time() -> None:
    async def main() -> timedelta:
        earlier = testing.message()
        await asyncio.sleep(3600)
        return testing.message().published_at - earlier.published_at

    assert testing.run(main()).total_seconds() == pytest.approx(3600, abs=0.01)


def test_a_key_of_bytes_is_kept() -> None:
    assert testing.message(key=b"\xff\x00").partition_key_bytes() == b"\xff\x00"


def test_a_schema_encodes_the_value_and_decodes_it() -> None:
    message = testing.message("grüße", schema=StringSchema())
    assert message.data() == "grüße".encode()
    assert message.value() == "grüße"


def test_a_made_message_with_a_value_and_no_schema_has_the_given_properties() -> None:
    message = testing.message({"total": 5}, key="k", properties={"region": "eu"})
    assert message.value() == {"total": 5}
    assert (message.partition_key(), message.properties()) == ("k", {"region": "eu"})


def test_a_message_without_a_value_is_null() -> None:
    message = testing.message(None)
    assert message.has_null_value()
    assert message.value() is None
    assert message.data() == b""


@dataclass
class Order:
    total: int


def test_a_codec_encodes_the_value_and_decodes_it() -> None:
    message = testing.message(Order(5), schema=encore.Json(Order))
    assert message.data() == b'{"total":5}'
    assert message.value() == Order(5)


def test_a_value_without_a_schema_is_returned_and_has_no_payload() -> None:
    order = Order(5)
    message = testing.message(order)
    assert message.value() is order
    assert not message.has_null_value()
    with pytest.raises(encore.ConfigurationError, match="from a Order without a schema"):
        message.data()
    assert "0 bytes" in repr(message)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"attempt": 0}, "attempt"),
        ({"attempt": True}, "attempt"),
        ({"key": 5}, "key must be str, bytes or None, got int"),
        ({"properties": {"a": 1}}, r"properties\['a'\] must be a string"),
        ({"properties": ["a"]}, "properties must be a dict"),
        ({"topic": ""}, "topic"),
        (
            {"published_at": datetime(2026, 1, 1)},
            "published_at must be a datetime with a time zone",
        ),
        ({"published_at": 5}, "published_at must be a datetime"),
        ({"event_at": datetime(1969, 1, 1, tzinfo=UTC)}, "event_at must not be before 1970"),
        ({"value": 5, "schema": StringSchema()}, "value does not fit"),
        ({"schema": StringSchema}, "schema must be a schema object"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(encore.ConfigurationError, match=problem):
        testing.message(**arguments)


def test_letters_show_the_evidence_of_every_failure() -> None:
    async def main() -> None:
        memory = testing.MemoryPulsar()
        memory.transport.catalogue.create_partitioned("orders-DLQ", 2)
        async with memory.client as client:
            consumer = await client.subscribe(
                "orders",
                "billing",
                encore.ConsumerType.Shared,
                schema=StringSchema(),
                negative_ack_redelivery_delay_ms=100,
                dead_letter_policy=encore.DeadLetterPolicy(1, dead_letter_topic="orders-DLQ"),
            )
            assert testing.letters(memory.transport, "orders-DLQ") == []
            memory.transport.put("orders", b"a", b"b", properties={"trace": "1"})
            for _ in range(4):
                message = await consumer.receive()
                await consumer.negative_acknowledge(message, error=ValueError(message.value()))
            await asyncio.sleep(10)
            letters = testing.letters(memory.transport, "orders-DLQ", StringSchema())
            assert sorted(letter.message.value() for letter in letters) == ["a", "b"]
            for letter in letters:
                assert letter.error_class == "ValueError"
                assert letter.error_message == letter.message.value()
                assert letter.real_topic == "persistent://public/default/orders"
                assert letter.evidence()["ENCORE_ATTEMPTS"] == "2"
                assert letter.user_properties() == {"trace": "1"}
            assert len({letter.id for letter in letters}) == 2

    testing.run(main())


@pytest.mark.parametrize("compression", ["NONE", "ZLib", "LZ4", "ZSTD"])
def test_letters_are_read_from_batches_chunks_and_compressed_entries(compression: str) -> None:
    payloads = [b"one", b"two" * 600_000, b"three", b"four"]

    async def main() -> None:
        memory = testing.MemoryPulsar()
        async with memory.client as client:
            for chunked in (False, True):
                producer = await client.create_producer(
                    "DLQ",
                    batching_enabled=not chunked,
                    batching_max_publish_delay_ms=100,
                    batching_max_allowed_size_in_bytes=4 * 1024 * 1024,
                    chunking_enabled=chunked,
                    compression_type=encore.CompressionType[compression],
                )
                await asyncio.gather(*(producer.send(each) for each in payloads))
                await producer.close()
            memory.transport.put_chunked("DLQ", b"in three parts", 3)
        letters = testing.letters(memory.transport, "DLQ")
        assert [each.message.data() for each in letters] == [
            *payloads,
            *payloads,
            b"in three parts",
        ]
        assert len({each.id for each in letters}) == 9
        assert letters[-1].message.message_id().first_chunk is not None

    testing.run(main())


def test_letters_are_decoded_by_a_codec() -> None:
    transport = testing.MemoryTransport()
    transport.put("DLQ", b'{"total":5}', b"[]")
    first, second = testing.letters(transport, "DLQ", encore.Json(Order))
    assert first.message.value() == Order(5)
    with pytest.raises(encore.DecodeError):
        second.message.value()
    with pytest.raises(encore.ConfigurationError, match=r"encore.Json\(Order\)"):
        testing.letters(transport, "DLQ", Order)


def test_a_topic_that_does_not_exist_has_no_letters_and_is_not_created() -> None:
    transport = testing.MemoryTransport()
    assert testing.letters(transport, "orders-billing-DLQ") == []
    assert transport.catalogue.topics == {}
    with pytest.raises(encore.ConfigurationError, match="no letters of"):
        testing.letters(transport, "a/b/c/d/e")
