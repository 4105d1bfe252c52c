"""Large compressed payloads are decompressed in order, within a memory limit, and never lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from native_kit import TOPIC, Collector, Rig, run, settle

import pulsar_encore as encore
from pulsar_encore.devbroker.rules.topic_log import LogEntry
from pulsar_encore.options import ConsumerType
from pulsar_encore.testing import MemoryTransport
from pulsar_encore.transport.interface import AckPlan
from pulsar_encore.transport.native.connection.codec_thread import CodecThread
from pulsar_encore.transport.native.consumer import entry_reader as entries_module
from pulsar_encore.transport.native.consumer import native_consumer as consumer_module
from pulsar_encore.transport.native.consumer.memory_budget import MemoryBudget
from pulsar_encore.values.message_id import MessageId
from pulsar_encore.wire import compress
from pulsar_encore.wire import pulsar_pb2 as pb
from pulsar_encore.wire.entries import encode_batch, encode_body

LARGE = 2_000  # payloads of this size are decompressed later in these tests
MEMORY_LIMIT = 5_000  # Limit of unread decompressed bytes: two payloads.


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries_module, "_AT_ONCE", LARGE - 1)
    monkeypatch.setattr(consumer_module, "MOST_BYTES", MEMORY_LIMIT)


class HeldCodecs:
    """Codec calls that run when a test calls `go`, in place of a thread."""

    def __init__(self) -> None:
        self.calls: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self.calls.append((future, work))
        return future

    def shutdown(self) -> None:
        """There is no thread to end."""

    def go(self) -> None:
        """Run the oldest call."""
        future, work = self.calls.pop(0)
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)


def held_rig() -> tuple[Rig, HeldCodecs]:
    rig, codecs = Rig(), HeldCodecs()
    rig.transport._make_codecs = lambda: codecs
    return rig, codecs


def large(number: int) -> bytes:
    return b"%4d" % number + bytes(LARGE - 4)


def store_large(rig: Rig, *numbers: int, claim: int = LARGE, damaged: bool = False) -> None:
    for number in numbers:
        packed = compress(pb.ZLIB, large(number))
        if damaged:
            packed = packed[:-8] + bytes(8)
        rig.store(packed, compression=pb.ZLIB, uncompressed_size=claim)


def numbers(listener: Collector) -> list[int]:
    return [int(payload[:4]) for payload in listener.payloads]


async def take(transport_consumer: Any, listener: Collector, count: int) -> list[int]:
    """Receive messages as they arrive, like an application."""
    taken: list[int] = []
    for _ in range(1000):
        got = numbers(listener)
        listener.deliveries.clear()
        taken += got
        if got:
            transport_consumer.consumed(0, len(got))
        if len(taken) >= count:
            break
        await settle()
    return taken


def test_an_unread_consumer_decompresses_no_more_than_its_memory_limit() -> None:
    """An earlier version decompressed the first 16 messages, whatever their size."""

    async def main() -> None:
        rig = Rig()
        store_large(rig, *range(40))
        transport_consumer, listener = await rig.subscribe()
        await settle(1)
        assert numbers(listener) == [0, 1]
        assert await take(transport_consumer, listener, 40) == list(range(40))
        assert transport_consumer.snapshot().decompressed_bytes <= MEMORY_LIMIT
        await settle()
        assert transport_consumer.snapshot().decompressed_bytes == 0

    run(main())


def test_a_payload_larger_than_the_limit_is_delivered_alone() -> None:
    async def main() -> None:
        rig = Rig()
        size = 3 * MEMORY_LIMIT
        for number in range(3):
            payload = b"%4d" % number + bytes(size - 4)
            rig.store(compress(pb.ZLIB, payload), compression=pb.ZLIB, uncompressed_size=size)
        transport_consumer, listener = await rig.subscribe()
        assert numbers(listener) == [0]
        assert await take(transport_consumer, listener, 3) == [0, 1, 2]

    run(main())


def test_the_topics_of_a_consumer_share_the_memory_limit_in_order_of_their_requests() -> None:
    async def main() -> None:
        rig = Rig()
        rig.service.catalogue.create_partitioned(TOPIC, 3)
        for part in range(3):
            packed = compress(pb.ZLIB, large(part))
            rig.store(
                *[packed] * 4,
                topic=f"{TOPIC}-partition-{part}",
                compression=pb.ZLIB,
                uncompressed_size=LARGE,
            )
        transport_consumer, listener = await rig.subscribe()
        assert len(listener.deliveries) == 2
        taken: list[int] = []
        while listener.deliveries:
            delivery = listener.deliveries.pop(0)
            taken.append(delivery.topic_number)
            transport_consumer.consumed(delivery.topic_number, 1)
            await settle()
            assert len(listener.deliveries) <= 2
        assert sorted(taken) == [0] * 4 + [1] * 4 + [2] * 4
        assert set(taken[:6]) == {0, 1, 2}, "no partition waits for all of another"

    run(main())


def test_entries_after_one_that_is_being_decompressed_wait_in_order() -> None:
    async def main() -> None:
        rig, codecs = held_rig()
        rig.store(b"   0")
        store_large(rig, 1)
        rig.store(b"   2", b"   3")
        rig.store(b"   4", b"   5", batch=True)
        store_large(rig, 6)
        rig.store(b"   7")
        _, listener = await rig.subscribe()
        assert numbers(listener) == [0]
        codecs.go()
        await settle()
        assert numbers(listener) == [0, 1, 2, 3, 4, 5]
        codecs.go()
        await settle()
        assert numbers(listener) == list(range(8))

    run(main())


def test_another_topic_continues_during_a_decompression() -> None:
    async def main() -> None:
        rig, codecs = held_rig()
        rig.service.catalogue.create_partitioned(TOPIC, 2)
        rig.store(b"   1", topic=f"{TOPIC}-partition-1")
        packed = compress(pb.ZLIB, large(0))
        topic = f"{TOPIC}-partition-0"
        rig.store(packed, topic=topic, compression=pb.ZLIB, uncompressed_size=LARGE)
        _, listener = await rig.subscribe()
        assert numbers(listener) == [1]
        codecs.go()
        await settle()
        assert numbers(listener) == [1, 0]

    run(main())


def test_permits_match_the_brokers_count_while_entries_wait() -> None:
    async def main() -> None:
        rig, codecs = held_rig()
        store_large(rig, *range(4))
        rig.store(b"   4", b"   5", b"   6", batch=True)
        transport_consumer, listener = await rig.subscribe(receiver_queue_size=20)
        topic = transport_consumer.topic_consumers[0]
        (consumer,) = rig.service.catalogue.topic(TOPIC).subscriptions["s"].consumers
        for _ in range(4):
            assert topic.snapshot().open_permits == consumer.permits
            assert topic.snapshot().open_permits + topic.snapshot().unconsumed <= 20
            codecs.go()
            transport_consumer.consumed(0, len(listener.deliveries))
            listener.deliveries.clear()
            await settle()
        await take(transport_consumer, listener, 3)
        await settle()
        assert topic.snapshot().unconsumed == 0
        assert topic.snapshot().open_permits == consumer.permits

    run(main())


def cut(rig: Rig, transport_consumer: Any) -> Any:
    rig.dialer.drop()


def rewind(rig: Rig, transport_consumer: Any) -> Any:
    transport_consumer.redeliver_all()


def seek(rig: Rig, transport_consumer: Any) -> Any:
    return transport_consumer.seek(MessageId.earliest)


@pytest.mark.parametrize("void", [cut, rewind, seek])
@pytest.mark.parametrize("finishes", [False, True])
def test_queued_entries_are_dropped_on_reconnect_and_redelivered(void: Any, finishes: bool) -> None:
    """After a reconnect, a rewind or a seek the result of a running decompression is discarded."""

    async def main() -> None:
        rig, codecs = held_rig()
        store_large(rig, 0, 1)
        rig.store(b"   2")
        transport_consumer, listener = await rig.subscribe(consumer_type=ConsumerType.Exclusive)
        under_way = codecs.calls[:]
        seeking = void(rig, transport_consumer)
        if seeking is not None:
            seeking = asyncio.ensure_future(seeking)
            await asyncio.sleep(0)
        if finishes:
            codecs.go()
        await settle(5)
        if seeking is not None:
            await seeking
        listener.deliveries.clear()
        for _ in range(8):
            if codecs.calls:
                codecs.go()
            await settle(1)
        assert numbers(listener) == [0, 1, 2]
        assert len(under_way) == 1
        transport_consumer.consumed(0, 3)
        await settle()
        assert transport_consumer.snapshot().decompressed_bytes == 0

    run(main())


def test_a_rewind_during_a_decompression_drops_its_result() -> None:
    async def main() -> None:
        rig, codecs = held_rig()
        store_large(rig, 0)
        transport_consumer, listener = await rig.subscribe(consumer_type=ConsumerType.Exclusive)
        future, work = codecs.calls.pop()
        assert future.set_running_or_notify_cancel()
        transport_consumer.redeliver_all()
        future.set_result(work())
        await settle()
        assert not listener.deliveries
        await settle(2)
        codecs.go()
        await settle()
        assert numbers(listener) == [0]

    run(main())


@pytest.mark.parametrize("how", ["close", "abandon"])
def test_a_consumer_that_closes_drops_queued_entries(how: str) -> None:
    async def main() -> None:
        rig, codecs = held_rig()
        store_large(rig, 0, 1, 2)
        transport_consumer, listener = await rig.subscribe()
        if how == "close":
            await transport_consumer.close()
        else:
            transport_consumer.abandon()
        while codecs.calls:
            codecs.go()
        await settle()
        assert not listener.deliveries
        assert transport_consumer.snapshot().decompressed_bytes == 0
        assert not transport_consumer.snapshot().topics[0].queued
        rig.dialer.drop()
        _, listener = await rig.subscribe()
        while codecs.calls:
            codecs.go()
            await settle()
        assert numbers(listener) == [0, 1]

    run(main())


def test_a_corrupted_payload_is_requested_once_more_then_acked_and_costs_no_other_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        rig = Rig()
        rig.store(b"   0")
        store_large(rig, 1)
        store_large(rig, 99, damaged=True)
        store_large(rig, 2)
        rig.store(b"   3")
        transport_consumer, listener = await rig.subscribe()
        seen: dict[int, None] = {}
        for _ in range(200):
            for delivery in listener.deliveries:
                seen.setdefault(int(delivery.messages[0].data()[:4]))
            if transport_consumer.is_connected():
                transport_consumer.ack(
                    AckPlan(
                        0, None, [(each.ledger, each.entry) for each in listener.deliveries], []
                    )
                )
                transport_consumer.consumed(0, len(listener.deliveries))
                listener.deliveries.clear()
            await settle(0.1)
        assert sorted(seen) == [0, 1, 2, 3]
        assert rig.service.catalogue.topic(TOPIC).subscriptions["s"].backlog == 0

    run(main())
    assert sum("is requested again" in each.message for each in caplog.records) == 1
    assert sum("is broken and acked" in each.message for each in caplog.records) == 1


@pytest.mark.parametrize("claim", [LARGE - 1, LARGE + 1, 200_000_000, 2**32 - 1])
def test_a_wrong_size_from_a_publisher_costs_one_entry(
    claim: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        rig = Rig()
        store_large(rig, 0)
        store_large(rig, 99, claim=claim)
        store_large(rig, 1)
        transport_consumer, listener = await rig.subscribe(consumer_type=ConsumerType.Exclusive)
        seen: dict[int, None] = {}
        for _ in range(100):
            for delivery in listener.deliveries:
                seen.setdefault(int(delivery.messages[0].data()[:4]))
            if transport_consumer.is_connected():
                transport_consumer.ack(
                    AckPlan(
                        0, None, [(each.ledger, each.entry) for each in listener.deliveries], []
                    )
                )
                transport_consumer.consumed(0, len(listener.deliveries))
                listener.deliveries.clear()
            await settle(0.1)
        assert list(seen) == [0, 1]
        assert rig.service.catalogue.topic(TOPIC).subscriptions["s"].backlog == 0

    run(main())
    assert sum("is broken and acked" in each.message for each in caplog.records) == 1


def test_an_internal_error_during_decompression_never_acks_the_entry(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        rig, codecs = held_rig()
        store_large(rig, 0)
        _, listener = await rig.subscribe()
        future, _ = codecs.calls.pop()
        future.set_running_or_notify_cancel()
        future.set_exception(MemoryError())
        await settle(2)
        codecs.go()
        await settle()
        assert numbers(listener) == [0]
        assert rig.service.catalogue.topic(TOPIC).subscriptions["s"].backlog == 1

    run(main())
    assert "cannot be read now" in caplog.text


@pytest.mark.parametrize("durable", [True, False])
def test_an_internal_error_loses_no_chunked_message(durable: bool) -> None:
    """A message that arrived between the chunks has moved a reader's position past the first."""

    async def main() -> None:
        rig, codecs = held_rig()
        packed = compress(pb.ZLIB, Random(1).randbytes(LARGE))
        for at, piece in enumerate((packed[:900], packed[900:])):
            rig.store(
                piece,
                uuid="u",
                chunk_id=at,
                num_chunks_from_msg=2,
                total_chunk_msg_size=len(packed),
                compression=pb.ZLIB,
                uncompressed_size=LARGE,
            )
            if at == 0:
                rig.store(b"between")
        rig.store(b"after")
        options: dict[str, Any] = {}
        if not durable:
            options = {
                "durable": False,
                "start_message_id": MessageId.earliest,
                "consumer_type": ConsumerType.Exclusive,
            }
        _, listener = await rig.subscribe(**options)
        await settle()
        future, _ = codecs.calls.pop()
        future.set_running_or_notify_cancel()
        future.set_exception(MemoryError())
        await settle(2)
        while codecs.calls:
            codecs.go()
        await settle(2)
        sizes = {len(each.data()) for one in listener.deliveries for each in one.messages}
        assert sizes == {len(b"between"), LARGE, len(b"after")}

    run(main())


def test_a_decompressed_message_does_not_keep_the_compressed_bytes() -> None:
    async def main() -> None:
        rig = Rig()
        store_large(rig, 0)
        packed = compress(pb.LZ4, b"small" * 20)
        rig.store(packed, compression=pb.LZ4, uncompressed_size=100)
        _, listener = await rig.subscribe()
        for delivery in listener.deliveries:
            message: Any = delivery.messages[0]
            assert message.body == b""
            assert message.length() == len(message.data())
            assert message.producer_name() == "p"

    run(main())


def test_a_large_batch_waits_as_one_entry_and_is_delivered_without_acked_messages() -> None:
    async def main() -> None:
        rig, codecs = held_rig()
        payloads = [b"%4d" % each + bytes(496) for each in range(8)]
        body = encode_batch((pb.SingleMessageMetadata(), each) for each in payloads)
        metadata = pb.MessageMetadata(
            producer_name="p",
            sequence_id=7,
            publish_time=1_700_000_000_000,
            compression=pb.ZLIB,
            uncompressed_size=len(body),
            num_messages_in_batch=8,
        )
        state = rig.service.catalogue.topic(TOPIC, create=True)
        stored = encode_body(metadata, compress(pb.ZLIB, body))
        state.log.append(LogEntry(stored, batch=8, publish_ms=1_700_000_000_000))
        transport_consumer, listener = await rig.subscribe()
        codecs.go()
        await settle()
        assert numbers(listener) == list(range(8))
        (delivery,) = listener.deliveries
        assert delivery.batch_size == 8
        mask = 0b1010_1010
        transport_consumer.ack(AckPlan(0, None, [], [(delivery.ledger, delivery.entry, 8, mask)]))
        transport_consumer.consumed(0, 8)
        await settle()
        transport_consumer.redeliver(0, [(delivery.ledger, [delivery.entry])])
        listener.deliveries.clear()
        await settle()
        codecs.go()
        await settle()
        assert [tuple(each.indexes) for each in listener.deliveries] == [(1, 3, 5, 7)]
        assert numbers(listener) == [1, 3, 5, 7]

    run(main())


@pytest.mark.parametrize("durable", [True, False])
def test_a_chunked_message_is_decompressed_in_order(durable: bool) -> None:
    async def main() -> None:
        rig, codecs = held_rig()
        packed = compress(pb.ZLIB, Random(1).randbytes(LARGE))
        for at, piece in enumerate((packed[:900], packed[900:])):
            rig.store(
                piece,
                uuid="u",
                chunk_id=at,
                num_chunks_from_msg=2,
                total_chunk_msg_size=len(packed),
                compression=pb.ZLIB,
                uncompressed_size=LARGE,
            )
            if at == 0:
                rig.store(b"   5")
        rig.store(b"   6")
        fields: dict[str, Any] = {}
        if not durable:
            fields = {
                "durable": False,
                "start_message_id": MessageId.earliest,
                "consumer_type": ConsumerType.Exclusive,
            }
        _, listener = await rig.subscribe(**fields)
        assert numbers(listener) == [5]
        rig.dialer.drop()  # Its first chunk is before the last message that the reader delivered.
        await settle(1)
        listener.deliveries.clear()
        while codecs.calls:
            codecs.go()
            await settle()
        assert listener.payloads == [Random(1).randbytes(LARGE), b"   6"]

    run(main())


def test_unread_chunked_messages_count_with_all_their_chunks() -> None:
    """An earlier version counted the last chunk only, and kept seven unread messages of 100 MB."""

    async def main() -> None:
        rig = Rig()
        for number in range(20):
            for at in range(10):
                rig.store(
                    b"%4d" % number + bytes(246),
                    uuid=f"u{number}",
                    chunk_id=at,
                    num_chunks_from_msg=10,
                    total_chunk_msg_size=2_500,
                )
        transport_consumer, listener = await rig.subscribe()
        await settle(1)
        assert len(listener.deliveries) == MEMORY_LIMIT // 2_500
        assert await take(transport_consumer, listener, 20) == list(range(20))

    run(main())


def test_a_reader_reconnects_after_its_last_delivery_also_with_queued_entries() -> None:
    async def main() -> None:
        rig, codecs = held_rig()
        rig.store(b"   0")
        store_large(rig, 1)
        rig.store(b"   2")
        transport_consumer, listener = await rig.subscribe(
            durable=False,
            start_message_id=MessageId.earliest,
            consumer_type=ConsumerType.Exclusive,
        )
        assert numbers(listener) == [0]
        assert await transport_consumer.has_message_available()
        rig.dialer.drop()
        await settle(1)
        while codecs.calls:
            codecs.go()
            await settle()
        assert numbers(listener) == [0, 1, 2]
        assert not await transport_consumer.has_message_available()

    run(main())


def test_a_reader_skips_a_broken_entry_after_a_waiting_one_and_loses_no_message() -> None:
    async def main() -> None:
        rig = Rig()
        store_large(rig, 0, 1, 2, 3)
        store_large(rig, 99, claim=200_000_000)
        store_large(rig, 4)
        transport_consumer, listener = await rig.subscribe(
            durable=False,
            start_message_id=MessageId.earliest,
            consumer_type=ConsumerType.Exclusive,
        )
        taken: list[int] = []
        for _ in range(200):
            taken += numbers(listener)
            transport_consumer.consumed(0, len(listener.deliveries))
            listener.deliveries.clear()
            await settle(0.1)
        assert taken == [0, 1, 2, 3, 4]

    run(main())


def test_without_a_queue_each_message_is_requested() -> None:
    async def main() -> None:
        rig = Rig()
        store_large(rig, 0, 1, 2)
        transport_consumer, listener = await rig.subscribe(receiver_queue_size=0)
        taken = []
        for _ in range(3):
            transport_consumer.request_messages(1)
            await settle()
            taken += numbers(listener)
            listener.deliveries.clear()
            transport_consumer.consumed(0, 1)
            transport_consumer.request_messages(0)
            await settle()
        assert taken == [0, 1, 2]

    run(main())


def test_the_end_of_a_topic_is_reported_after_the_queued_entries() -> None:
    async def main() -> None:
        rig, codecs = held_rig()
        store_large(rig, 0)
        transport_consumer, listener = await rig.subscribe()
        transport_consumer.topic_consumers[0].on_end_of_topic()
        assert "end_of_topic" not in listener.names
        codecs.go()
        await settle()
        assert "end_of_topic" in listener.names
        assert numbers(listener) == [0]

    run(main())


def test_a_read_that_would_decompress_much_defers_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One read can hold 6,000 entries of 40 bytes, and each may have 1 MiB uncompressed."""
    monkeypatch.setattr(entries_module, "_AT_ONCE_PER_STEP", 3_000)

    async def main() -> None:
        rig, codecs = held_rig()
        packed = compress(pb.ZLIB, bytes(1_000))
        rig.store(*[packed] * 10, compression=pb.ZLIB, uncompressed_size=1_000)
        _, listener = await rig.subscribe()
        at_once = len(listener.deliveries)
        assert at_once <= 3 + 1
        while codecs.calls:
            codecs.go()
            await settle()
        assert at_once < len(listener.deliveries) <= 10

    run(main())


@given(st.integers(0, 10_000))
def test_random_losses_and_rewinds_lose_and_reorder_no_message(seed: int) -> None:
    """Exclusive: each attachment delivers in order from the first entry that is not acked."""
    rng = Random(seed)

    async def main() -> None:
        rig, codecs = held_rig()
        total = rng.randint(5, 25)
        for number in range(total):
            if rng.random() < 0.5:
                store_large(rig, number)
            else:
                rig.store(b"%4d" % number)
        transport_consumer, listener = await rig.subscribe(consumer_type=ConsumerType.Exclusive)
        done: list[int] = []
        for _ in range(3_000):
            if len(done) == total:
                break
            act = rng.random()
            if act < 0.03:
                rig.dialer.drop()
                listener.deliveries.clear()
                await settle(2)
                continue
            if act < 0.06 and transport_consumer.is_connected():
                transport_consumer.redeliver_all()
                count = sum(len(each.messages) for each in listener.deliveries)
                listener.deliveries.clear()
                transport_consumer.consumed(0, count)
                continue
            if act < 0.5 and codecs.calls:
                codecs.go()
            elif listener.deliveries and transport_consumer.is_connected():
                delivery = listener.deliveries.pop(0)
                number = int(delivery.messages[0].data()[:4])
                assert number <= len(done), "one was left out"
                if number == len(done):
                    done.append(number)
                    transport_consumer.ack(
                        AckPlan(0, None, [(delivery.ledger, delivery.entry)], [])
                    )
                transport_consumer.consumed(0, 1)
            await settle(rng.choice([0, 0.001, 0.2]))
        assert done == list(range(total))
        await settle(1)
        assert transport_consumer.snapshot().topics[0].unconsumed == 0
        assert transport_consumer.snapshot().decompressed_bytes == 0

    run(main())


def test_memory_is_granted_in_the_order_of_the_requests() -> None:
    budget = MemoryBudget(10)
    granted: list[str] = []
    assert budget.reserve(8, partial(granted.append, "a"))
    waits = {name: partial(granted.append, name) for name in "bcd"}
    assert not budget.reserve(9, waits["b"])
    assert not budget.reserve(1, waits["c"]), "a small one does not overtake for ever"
    assert not budget.reserve(20, waits["d"])
    budget.release(8)
    assert granted == ["b", "c"]
    budget.cancel(waits["d"])
    budget.release(10)
    assert granted == ["b", "c"]
    assert budget.used == 0


def test_a_large_payload_is_decompressed_in_a_thread_that_ends_with_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[str] = []
    decompress = entries_module.decompress

    def watched(*args: Any) -> Any:
        threads.append(threading.current_thread().name)
        return decompress(*args)

    monkeypatch.setattr(entries_module, "decompress", watched)

    async def main() -> None:
        rig = Rig()
        rig.transport._make_codecs = CodecThread
        rig.store(b"   0")
        transport_consumer, listener = await rig.subscribe()
        names = {each.name for each in threading.enumerate()}
        assert not any(name.startswith("pulsar-encore-codec") for name in names)
        store_large(rig, 1, 2)
        async with asyncio.timeout(30):
            while len(listener.deliveries) < 3:
                await settle()
        assert numbers(listener) == [0, 1, 2]
        await transport_consumer.close()
        await rig.transport.close()

    asyncio.run(main())
    assert len(threads) == 2
    assert all(name.startswith("pulsar-encore-codec") for name in threads)
    for each in threading.enumerate():
        if each.name.startswith("pulsar-encore-codec"):
            each.join(30)
            assert not each.is_alive()


# With a whole consumer on top


async def _send(client: encore.Client, topic: str, count: int, **options: Any) -> None:
    async with client.create_producer(
        topic, compression_type=encore.CompressionType.ZLib, batching_enabled=False
    ) as producer:
        for number in range(count):
            await producer.send(large(number), **options)


@pytest.mark.parametrize(
    "way", ["receive", "batch", "listener", "pop", "ordered pop", "reader", "nack"]
)
def test_every_receive_method_gets_more_than_the_memory_limit_holds(way: str) -> None:
    """A receive never waits for ever while messages wait for memory."""

    async def main() -> None:
        async with encore.Client("pulsar://h:1", transport=MemoryTransport()) as client:
            got: list[int] = []
            options: dict[str, Any] = {
                "initial_position": encore.InitialPosition.Earliest,
                "consumer_type": encore.ConsumerType.Shared,
            }
            if way == "reader":
                await _send(client, "t", 12)
                async with client.create_reader("t", encore.MessageId.earliest) as reader:
                    while len(got) < 12:
                        got.append(int((await reader.read_next()).data()[:4]))
                assert got == list(range(12))
                return
            if way == "batch":
                options["batch_receive_policy"] = encore.BatchReceivePolicy(10, -1, 0)
            if way == "nack":
                options["negative_ack_redelivery_delay_ms"] = 100
            if way == "ordered pop":
                options |= {"consumer_type": encore.ConsumerType.KeyShared, "ordered_leases": True}
            if way == "listener":

                async def listen(consumer: Any, message: Any) -> None:
                    got.append(int(message.data()[:4]))
                    await consumer.acknowledge(message)

                options["message_listener"] = listen
            async with client.subscribe("t", "s", **options) as consumer:
                key: dict[str, Any] = {"partition_key": "k"} if way == "ordered pop" else {}
                await _send(client, "t", 12, **key)
                if way == "batch":
                    messages = list(await consumer.batch_receive())
                    got += [int(each.data()[:4]) for each in messages]
                    assert len(got) == 10
                    got += [int((await consumer.receive()).data()[:4]) for _ in range(2)]
                elif way in ("pop", "ordered pop"):
                    while len(got) < 12:
                        for lease in await consumer.pop(3):
                            got.append(int(lease.message.data()[:4]))
                            await lease.ack()
                elif way == "listener":
                    while len(got) < 12:
                        await asyncio.sleep(0.01)
                else:
                    refused: set[int] = set()
                    while len(got) < 12:
                        message = await consumer.receive()
                        number = int(message.data()[:4])
                        if way == "nack" and number % 3 == 0 and number not in refused:
                            refused.add(number)
                            await consumer.negative_acknowledge(message)
                            continue
                        got.append(number)
                        await consumer.acknowledge(message)
            assert sorted(got) == list(range(12))
            if way != "nack":
                assert got == list(range(12))

    run(main())
