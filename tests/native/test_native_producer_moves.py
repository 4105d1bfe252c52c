"""A producer with deleted, refused or recreated partitions leaves no message behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from native_kit import TOPIC, Rig, run
from producer_kit import message, outcomes

from pulsar_encore.devbroker import BrokerSettings
from pulsar_encore.devbroker.rules.faults import Fault, FaultPlan
from pulsar_encore.exceptions import AuthorizationError, NotConnected, ServiceUnitNotReady
from pulsar_encore.options import ProducerOptions
from pulsar_encore.transport.native.producer.native_producer import NativeProducer
from pulsar_encore.transport.native.producer.partition_producer import PartitionProducer
from pulsar_encore.values.message_id import MessageId
from pulsar_encore.values.outgoing_message import OutgoingMessage


async def producer_of(rig: Rig, **chosen: Any) -> NativeProducer:
    given: dict[str, Any] = {"topic": TOPIC, "batching_enabled": False, **chosen}
    return await rig.transport.create_producer(ProducerOptions(**given))


def publish(
    producer: NativeProducer, part: PartitionProducer, number: int
) -> asyncio.Future[MessageId]:
    """Publish to one partition, like the producer for a message that the router sends to it."""
    waiter: asyncio.Future[MessageId] = asyncio.get_running_loop().create_future()
    producer._queue.put(part, message(number), waiter)
    return waiter


def refuse_producers(rig: Rig, error: str) -> None:
    rig.service.faults = FaultPlan(
        [Fault(kind="refuse", command="PRODUCER", error=error, times=10_000)]
    )


@pytest.mark.parametrize("begins", ["publish", "move", "publish and move", "move and publish"])
def test_a_partition_attaches_once_the_broker_allows_it(begins: str) -> None:
    async def main() -> None:
        rig = Rig()
        rig.service.catalogue.create_partitioned(TOPIC, 2)
        producer = await producer_of(
            rig, lazy_start_partitioned_producers=True, send_timeout_millis=60_000
        )
        part = next(each for each in producer.parts if not each.started)
        refuse_producers(rig, "ServiceNotReady")
        early = []
        for way in begins.split(" and "):
            if way == "publish":
                early.append(publish(producer, part, 1))
            else:
                part.begin()  # as `_move` does for frames of a deleted partition
            await asyncio.sleep(1)
        await asyncio.sleep(70)
        assert all(isinstance(each, ServiceUnitNotReady) for each in await outcomes(early))
        rig.service.faults = None
        later = await outcomes([publish(producer, part, number) for number in (2, 3)])
        assert all(isinstance(each, MessageId) for each in later), later
        assert part.is_connected()

    run(main())


def test_begin_attaches_a_partition_only_once() -> None:
    async def main() -> None:
        rig = Rig()
        rig.service.catalogue.create_partitioned(TOPIC, 2)
        producer = await producer_of(rig)
        attached = len(rig.service.recorder.find("PRODUCER", "in"))
        for part in producer.parts:
            part.begin()
        await asyncio.sleep(10)
        assert len(rig.service.recorder.find("PRODUCER", "in")) == attached

    run(main())


def test_a_send_timeout_says_why_the_producer_is_not_attached() -> None:
    async def main() -> None:
        rig = Rig()
        producer = await producer_of(rig, send_timeout_millis=5_000)
        refuse_producers(rig, "AuthorizationError")
        rig.dialer.drop()
        await asyncio.sleep(1)
        (failed,) = await outcomes([producer.publish(message(1))])
        assert "send_timeout_millis" in str(failed) and "AuthorizationError" in str(failed)
        assert not isinstance(failed, AuthorizationError), "the message may be stored already"

    run(main())


def test_waiting_sends_go_to_the_new_partitions_when_a_chunked_message_is_lost() -> None:
    async def main() -> None:
        rig = Rig(BrokerSettings(max_message_size=20_000))
        rig.service.catalogue.create(TOPIC)
        producer = await producer_of(
            rig,
            chunking_enabled=True,
            max_pending_messages=3,
            block_if_queue_full=True,
            send_timeout_millis=90_000,
        )
        part = producer.parts[0]
        handle, receipts = part.on_receipt, 0

        def only_the_first(receipt: Any) -> None:
            nonlocal receipts
            receipts += 1
            if receipts == 1:
                handle(receipt)

        part.on_receipt = only_the_first  # type: ignore[method-assign]
        chunked = producer.publish(OutgoingMessage(payload=b"x" * 45_000))
        await asyncio.sleep(1)
        waiting = [producer.publish(message(number)) for number in range(4)]
        rig.dialer.drop()
        rig.service.delete(TOPIC)
        await asyncio.sleep(3)
        rig.service.catalogue.create_partitioned(TOPIC, 2)
        (lost,) = await outcomes([chunked])
        assert isinstance(lost, NotConnected) and "some chunks of this message" in str(lost)
        stored = await outcomes(waiting)
        assert all(isinstance(each, MessageId) for each in stored), stored

    run(main())


def test_flush_waits_for_failed_messages_that_are_not_reported_yet() -> None:
    async def main() -> None:
        rig = Rig()
        producer = await producer_of(rig, max_pending_messages=0, send_timeout_millis=3_000)
        rig.dialer.reachable = False
        rig.dialer.drop()
        await asyncio.sleep(0.1)
        sends = [asyncio.ensure_future(producer.publish(message(each))) for each in range(3_000)]
        while not sends[0].done():
            await asyncio.sleep(0)
            if any(each.done() for each in sends):
                break
            await asyncio.sleep(0.1)
        assert not sends[-1].done(), "they are told in several steps of the loop"
        with pytest.raises(Exception, match="send_timeout_millis"):
            await producer.flush()
        assert all(each.done() for each in sends)
        await outcomes(sends)

    run(main())


def test_an_error_in_a_callback_leaves_no_message_unreported() -> None:
    async def main() -> None:
        rig = Rig()
        producer = await producer_of(rig, max_pending_messages=0, send_timeout_millis=3_000)
        rig.dialer.reachable = False
        rig.dialer.drop()
        await asyncio.sleep(0.1)
        part = producer.parts[0]
        leave, calls = part._release_slots, 0

        def failing(room: int) -> None:
            nonlocal calls
            calls += 1
            if calls == 700:
                raise ValueError("e.g. of the application's key reader")
            leave(room)

        part._release_slots = failing
        sends = [asyncio.ensure_future(producer.publish(message(each))) for each in range(3_000)]
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        await asyncio.sleep(10)
        assert all(each.done() for each in sends)
        assert calls >= 700, "the callback has failed"
        await outcomes(sends)
        async with asyncio.timeout(60):
            await producer.close()

    run(main())


def test_a_producer_still_looks_for_new_partitions_after_a_move_to_the_next_loop() -> None:
    async def main() -> None:
        rig = Rig()
        rig.service.catalogue.create_partitioned(TOPIC, 2)
        producer = await producer_of(rig)
        rig.service.delete(TOPIC)
        await asyncio.sleep(3)
        rig.service.catalogue.create(TOPIC)
        await asyncio.sleep(20)
        assert not producer._partitioned
        producer._move_to_running_loop()  # as on the next loop
        await outcomes([producer.publish(message(1))])
        rig.service.delete(TOPIC)
        await asyncio.sleep(3)
        rig.service.catalogue.create_partitioned(TOPIC, 2)
        await asyncio.sleep(20)
        assert len(producer.parts) == 2
        rig.service.catalogue.create_partitioned(TOPIC, 3)
        await asyncio.sleep(120)
        assert len(producer.parts) == 3

    run(main())


def test_growth_ignores_an_answer_from_before_the_topic_was_recreated() -> None:
    async def main() -> None:
        rig = Rig()
        rig.service.catalogue.create_partitioned(TOPIC, 4)
        producer = await producer_of(rig, lazy_start_partitioned_producers=True)
        lookup = producer._lookup
        ask = lookup.partitions
        asked, answered = asyncio.Event(), asyncio.Event()

        async def slow(topic: str, *, create: bool = True) -> int:
            count = await ask(topic, create=create)
            asked.set()
            await answered.wait()
            return count

        lookup.partitions = slow  # type: ignore[method-assign]
        growing = asyncio.ensure_future(producer._grow())
        await asked.wait()
        lookup.partitions = ask  # type: ignore[method-assign]
        rig.service.delete(TOPIC)
        rig.service.catalogue.create_partitioned(TOPIC, 2)
        producer._shape.partitions = 2
        producer._fit_parts(2)
        answered.set()
        assert not await growing, "asked again"
        assert len(producer.parts) == 2

    run(main())
