"""Entries that wait for decompression while the application acks or asks for redelivery."""

from __future__ import annotations

from typing import Any

import pytest
from native_kit import TOPIC, Rig, run, settle, transport_consumer_of
from test_native_decompression_queue import LARGE, held_rig, numbers, store_large

import pulsar_encore as encore
from pulsar_encore.devbroker.rules.topic_log import LogEntry
from pulsar_encore.options import ConsumerType
from pulsar_encore.transport.interface import AckPlan
from pulsar_encore.transport.native.consumer import entry_reader as entries_module
from pulsar_encore.values.message_id import MessageId
from pulsar_encore.wire import compress
from pulsar_encore.wire import pulsar_pb2 as pb
from pulsar_encore.wire.entries import encode_batch, encode_body

LATER_S = 10.0  # longer than acks are remembered


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries_module, "_AT_ONCE", LARGE - 1)


def store_large_batch(rig: Rig, *numbers: int) -> None:
    payloads = [b"%4d" % number + bytes(LARGE) for number in numbers]
    body = encode_batch((pb.SingleMessageMetadata(), each) for each in payloads)
    metadata = pb.MessageMetadata(
        producer_name="p",
        sequence_id=7,
        publish_time=1_700_000_000_000,
        compression=pb.ZLIB,
        uncompressed_size=len(body),
        num_messages_in_batch=len(numbers),
    )
    stored = encode_body(metadata, compress(pb.ZLIB, body))
    log = rig.service.catalogue.topic(TOPIC, create=True).log
    log.append(LogEntry(stored, batch=len(numbers), publish_ms=1_700_000_000_000))


async def receive_small(rig: Rig, consumer: Any) -> None:
    """Deliver a small message, so that the consumer has a record of its topic."""
    rig.store(b"   9")
    await consumer.acknowledge(await consumer.receive(1000))
    await settle(1)


async def decompress_all(codecs: Any) -> None:
    while codecs.calls:
        codecs.go()
        await settle()


def check_permits(rig: Rig, transport_consumer: Any) -> None:
    (consumer,) = rig.service.catalogue.topic(TOPIC).subscriptions["s"].consumers
    topic = transport_consumer.snapshot().topics[0]
    assert topic.open_permits == consumer.permits
    assert not topic.queued
    assert not topic.queued_messages


def with_consumer(kind: ConsumerType, count: int, check: Any, **options: Any) -> None:
    """Call `check` with a consumer while `count` large messages wait."""

    async def main() -> None:
        rig, codecs = held_rig()
        async with encore.Client("pulsar://x", transport=rig.transport) as client:
            consumer = await client.subscribe(
                TOPIC, "s", kind, initial_position=encore.InitialPosition.Earliest, **options
            )
            await receive_small(rig, consumer)
            store_large(rig, *range(count))
            await settle()
            await check(rig, codecs, consumer)
            check_permits(rig, transport_consumer_of(consumer))
            await consumer.close()
            assert transport_consumer_of(consumer).snapshot().decompressed_bytes == 0

    run(main())


async def rest(codecs: Any, consumer: Any) -> list[int]:
    """Decompress and receive all remaining messages."""
    received: list[int] = []
    while True:
        await decompress_all(codecs)
        try:
            message = await consumer.receive(100)
        except encore.ReceiveTimeout:
            if not codecs.calls:
                return received
            continue
        received.append(int(message.data()[:4]))
        await consumer.acknowledge(message)


def id_of(consumer: Any, number: int) -> MessageId:
    ledger, entry = transport_consumer_of(consumer).snapshot().topics[0].queued[0]
    return MessageId(-1, ledger, entry + number, topic=TOPIC)


def test_a_cumulative_ack_by_id_covers_entries_that_wait() -> None:
    async def check(rig: Rig, codecs: Any, consumer: Any) -> None:
        await consumer.acknowledge_cumulative(id_of(consumer, 5))
        await settle(LATER_S)
        assert await rest(codecs, consumer) == [6, 7]

    with_consumer(ConsumerType.Exclusive, 8, check)


@pytest.mark.parametrize("which", [[0], [1], [0, 1, 2, 3], [3]])
def test_an_ack_by_id_covers_an_entry_that_waits(which: list[int]) -> None:
    async def check(rig: Rig, codecs: Any, consumer: Any) -> None:
        for each in which:
            await consumer.acknowledge(id_of(consumer, each))
        # All acks are sent together because dropping the head changes the ids from which `id_of`
        # counts.
        await settle(LATER_S)
        assert await rest(codecs, consumer) == [each for each in range(4) if each not in which]

    with_consumer(ConsumerType.Shared, 4, check)


def test_the_result_of_a_decompression_is_discarded_after_an_ack_of_its_entry() -> None:
    async def check(rig: Rig, codecs: Any, consumer: Any) -> None:
        future, work = codecs.calls.pop()
        assert future.set_running_or_notify_cancel()
        await consumer.acknowledge_cumulative(id_of(consumer, 0))
        await settle(LATER_S)
        future.set_result(work())
        await settle()
        assert await rest(codecs, consumer) == [1, 2]

    with_consumer(ConsumerType.Exclusive, 3, check)


@pytest.mark.parametrize("cumulative", [True, False])
def test_acked_messages_of_a_waiting_batch_are_not_delivered(cumulative: bool) -> None:
    async def main() -> None:
        rig, codecs = held_rig()
        kind = ConsumerType.Exclusive if cumulative else ConsumerType.Shared
        store_large(rig, 0)
        store_large_batch(rig, 1, 2, 3, 4)
        transport_consumer, listener = await rig.subscribe(consumer_type=kind)
        part = (*transport_consumer.snapshot().topics[0].queued[1], 4, 0b1100)
        transport_consumer.ack(
            AckPlan(0, part, [], []) if cumulative else AckPlan(0, None, [], [part])
        )
        await settle(LATER_S)
        await decompress_all(codecs)
        assert numbers(listener) == ([3, 4] if cumulative else [0, 3, 4])
        check_permits(rig, transport_consumer)
        transport_consumer.consumed(0, len(numbers(listener)))
        assert transport_consumer.snapshot().decompressed_bytes == 0
        assert transport_consumer.snapshot().topics[0].unconsumed == 0

    run(main())


def test_a_chunked_message_whose_chunks_wait_is_covered_by_a_cumulative_ack() -> None:
    async def main() -> None:
        rig, codecs = held_rig()
        store_large(rig, 0)
        for uuid in ("u", "v"):
            for at in range(2):
                rig.store(
                    b"   1" if uuid == "u" else b"   2",
                    uuid=uuid,
                    chunk_id=at,
                    num_chunks_from_msg=2,
                    total_chunk_msg_size=8,
                )
        transport_consumer, listener = await rig.subscribe(consumer_type=ConsumerType.Exclusive)
        last = transport_consumer.snapshot().topics[0].queued[2]
        transport_consumer.ack(AckPlan(0, (*last, 0, -1), [], []))
        await settle(LATER_S)
        await decompress_all(codecs)
        assert numbers(listener) == [2]
        assert transport_consumer.snapshot().topics[0].incomplete_chunked == 0
        check_permits(rig, transport_consumer)

    run(main())


def test_the_end_of_the_topic_is_reported_when_all_waiting_entries_are_acked() -> None:
    async def main() -> None:
        rig, _ = held_rig()
        store_large(rig, 0, 1)
        transport_consumer, listener = await rig.subscribe(consumer_type=ConsumerType.Exclusive)
        transport_consumer.topic_consumers[0].on_end_of_topic()
        last = transport_consumer.snapshot().topics[0].queued[1]
        transport_consumer.ack(AckPlan(0, (*last, 0, -1), [], []))
        await settle()
        assert "end_of_topic" in listener.names
        assert not listener.deliveries

    run(main())


# Redelivery of everything


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])
def test_redelivering_everything_leaves_one_copy_of_each_waiting_entry(
    kind: ConsumerType,
) -> None:
    async def check(rig: Rig, codecs: Any, consumer: Any) -> None:
        for _ in range(12):
            consumer.redeliver_unacknowledged_messages()
            await settle()
            assert len(transport_consumer_of(consumer).snapshot().topics[0].queued) <= 4
        assert await rest(codecs, consumer) == [0, 1, 2, 3]

    with_consumer(kind, 4, check)


@pytest.mark.parametrize("is_batch", [True, False])
def test_redelivering_everything_adds_no_delivery_attempt_to_a_waiting_message(
    is_batch: bool,
) -> None:
    async def main() -> None:
        rig, codecs = held_rig()
        async with encore.Client("pulsar://x", transport=rig.transport) as client:
            consumer: Any = await client.subscribe(
                TOPIC,
                "s",
                ConsumerType.Shared,
                initial_position=encore.InitialPosition.Earliest,
            )
            await receive_small(rig, consumer)
            if is_batch:
                store_large_batch(rig, 0, 1)
            else:
                store_large(rig, 0, 1)
            await settle()
            consumer.redeliver_unacknowledged_messages()
            await settle()
            counts = []
            for _ in range(2):
                await decompress_all(codecs)
                message = await consumer.receive(1000)
                counts.append(message.redelivery_count())
            assert counts == [0, 0]

    run(main())
