"""A batch whose messages have metadata that is broken behind the payload size."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from native_kit import TOPIC, Rig, run

from pulsar_encore import ConsumerType, DeadLetterPolicy, Message, Worker
from pulsar_encore.devbroker.rules.topic_log import LogEntry
from pulsar_encore.errors import UnreadableError
from pulsar_encore.transport.native.consumer.message_views import Batch, BatchMessage
from pulsar_encore.wire import pb
from pulsar_encore.wire.entries import encode_body

GOOD = b"\x18\x03"
# An endless size of a property, of a key and of an ordering key, and an endless event time.
BROKEN = [b"\x18\x03\x0a\xff", b"\x18\x03\x12\xff", b"\x18\x03\x3a\xff", b"\x18\x03\x28\xff"]


def _batch(*messages: tuple[bytes, bytes]) -> bytes:
    return b"".join(len(head).to_bytes(4, "big") + head + data for head, data in messages)


def _store(rig: Rig, topic: str, *messages: tuple[bytes, bytes]) -> None:
    """Store a batch like a producer with a defect."""
    state = rig.service.catalogue.topic(topic, create=True)
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1_700_000_000_000)
    metadata.num_messages_in_batch = len(messages)
    body = encode_body(metadata, _batch(*messages))
    state.log.append(LogEntry(body, batch=len(messages), publish_ms=1_700_000_000_000))
    for subscription in state.subscriptions.values():
        rig.service.scheduler.wake(state, subscription)


@pytest.mark.parametrize("broken", BROKEN)
def test_the_rest_of_the_message_can_be_read_and_it_can_be_settled(broken: bytes) -> None:
    async def main() -> None:
        rig = Rig()
        async with rig.client() as client:
            consumer = await client.subscribe(TOPIC, "s")
            _store(rig, TOPIC, (GOOD, b"one"), (broken, b"two"), (broken, b"six"), (GOOD, b"ten"))
            for payload in (b"one", b"two", b"six", b"ten"):
                message = await consumer.receive(1_000)
                assert message.data() == payload
                if payload in (b"two", b"six"):
                    for read in (message.properties, message.partition_key, message.ordering_key):
                        with pytest.raises(UnreadableError, match="metadata of a batch message"):
                            read()
                await message.ack()
        assert rig.service.catalogue.topic(TOPIC).subscriptions["s"].backlog == 0

    run(main())


def test_compaction_of_its_siblings_changes_nothing() -> None:
    """An error that escapes would end the connection, and the broker would resend the batch."""

    async def main() -> None:
        rig = Rig()
        removed = pb.SingleMessageMetadata(payload_size=0, compacted_out=True).SerializeToString()
        async with rig.client() as client:
            consumer = await client.subscribe(TOPIC, "s")
            _store(rig, TOPIC, (removed, b""), (BROKEN[0], b"two"), (GOOD, b"ten"))
            for payload in (b"two", b"ten"):
                message = await consumer.receive(1_000)
                assert message.data() == payload
                await message.ack()
        assert rig.service.catalogue.topic(TOPIC).subscriptions["s"].backlog == 0

    run(main())


@pytest.mark.parametrize("size", [127, 128, 16_383, 16_384, 2**21 - 1])
def test_the_payload_is_read_without_the_broken_fields(size: int) -> None:
    """Also behind a message that begins with the same bytes, which is not decoded."""
    head = pb.SingleMessageMetadata(payload_size=size).SerializeToString() + b"\x0a\xff"
    buffer = _batch((head, bytes(size)))
    message = BatchMessage(Batch(TOPIC, b"", buffer), 0)
    assert message.length() == size
    assert message.data() == bytes(size)
    with pytest.raises(UnreadableError):
        message.decoded()


@pytest.mark.parametrize("order", ["none", "key"])
def test_a_worker_handles_it_and_goes_on(order: Any) -> None:
    async def main() -> None:
        rig = Rig()
        handled: list[bytes] = []

        async def handle(value: bytes, message: Message[bytes]) -> None:
            handled.append(value)

        async with rig.client() as client:
            async with Worker(client, TOPIC, "s", handle, order=order):
                _store(rig, TOPIC, (GOOD, b"one"), (BROKEN[1], b"two"), (GOOD, b"six"))
                rig.store(b"ten")
                await asyncio.sleep(5)
        assert sorted(handled) == [b"one", b"six", b"ten", b"two"]
        assert rig.service.catalogue.topic(TOPIC).subscriptions["s"].backlog == 0

    run(main())


def test_letters_behind_it_are_delivered() -> None:
    """The delay of a letter is read when it arrives, before it is queued."""

    async def main() -> None:
        rig = Rig()
        async with rig.client() as client:
            consumer = await client.subscribe(
                TOPIC,
                "s",
                consumer_type=ConsumerType.Shared,
                dead_letter_policy=DeadLetterPolicy(max_redeliver_count=3),
                retry_enable=True,
            )
            letters = f"{TOPIC}-s-RETRY"
            _store(rig, letters, (GOOD, b"one"), (BROKEN[0], b"two"), (GOOD, b"six"))
            rig.store(b"ten", topic=letters)
            received = [await consumer.receive(1_000) for _ in range(4)]
            assert sorted(each.data() for each in received) == [b"one", b"six", b"ten", b"two"]
            for each in received:
                await each.ack()
        assert rig.service.catalogue.topic(letters).subscriptions["s"].backlog == 0

    run(main())


def test_pending_lists_it_without_its_key() -> None:
    """Also keys that the stock transport cannot read."""

    async def main() -> None:
        rig = Rig()
        handled = asyncio.Event()

        async def handle(value: bytes) -> None:
            await handled.wait()

        async with rig.client() as client:
            consumer = await client.subscribe(TOPIC, "leases", consumer_type=ConsumerType.Shared)
            worker = Worker(client, TOPIC, "s", handle)
            async with worker:
                _store(rig, TOPIC, (GOOD, b"one"), (BROKEN[1], b"two"))
                leases = [*await consumer.pop(1), *await consumer.pop(1)]
                await asyncio.sleep(1)
                assert [each.key for each in consumer.pending()] == [None, None]
                assert [each.key for each in worker.pending()] == [None, None]
                handled.set()
            for lease in leases:
                await lease.ack()

    run(main())
