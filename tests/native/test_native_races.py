"""Whole consumers and producers on the native transport, between two steps of a procedure."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from native_kit import TOPIC, Rig, parts_of, run, scopes_of, transport_consumer_of
from producer_kit import Network

import pulsar_encore as encore
from pulsar_encore import ConsumerType, InitialPosition
from pulsar_encore.devbroker.broker_settings import BrokerSettings
from pulsar_encore.devbroker.rules.faults import Fault, FaultPlan
from pulsar_encore.transport.interface import PlainDeliveries
from pulsar_encore.transport.native.consumer.consumer_states import State
from pulsar_encore.values.outgoing_message import OutgoingMessage


async def subscribed(client: encore.Client, **options: Any) -> encore.Consumer:
    """Subscribe from the first message, with Shared by default."""
    options.setdefault("consumer_type", ConsumerType.Shared)
    return await client.subscribe(TOPIC, "s", initial_position=InitialPosition.Earliest, **options)


async def all_of(consumer: encore.Consumer, timeout: float = 300) -> list[bytes]:
    """Receive and ack messages until none arrives for this time, in virtual seconds."""
    got = []
    while True:
        try:
            message = await consumer.receive(timeout=timeout)
        except encore.ReceiveTimeout:
            return got
        got.append(message.data())
        await consumer.acknowledge(message)


def test_a_run_that_contains_a_held_message_loses_no_message() -> None:
    async def main() -> None:
        rig = Rig()
        rig.store(b"0", b"1")
        async with rig.client() as client:
            consumer = await subscribed(client)
            messages = [await consumer.receive(timeout=5) for _ in range(2)]
            held = messages[1].message_id()
            ledger, entry = held.ledger_id(), held.entry_id()
            positions = [(ledger, 100), (ledger, 101), (ledger, entry), (ledger, 102)]
            again = PlainDeliveries(0, positions, [messages[0]._raw] * 4)
            parts_of(consumer).delivery_handler.on_deliveries([again])
            received = [(await consumer.receive(timeout=1)).message_id() for _ in range(3)]
            assert [each.entry_id() for each in received] == [100, 101, 102]

    run(main())


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover])
def test_a_rewind_during_a_reattach_uses_the_new_epoch(kind: ConsumerType) -> None:
    async def main() -> None:
        rig = Rig()
        rig.store(*(b"%d" % number for number in range(10)))
        async with rig.client() as client:
            consumer = await subscribed(client, consumer_type=kind)
            held = [await consumer.receive(timeout=5) for _ in range(3)]
            rig.service.faults = FaultPlan([Fault(kind="delay", command="SUBSCRIBE", delay_ms=500)])
            rig.dialer.drop()
            await asyncio.sleep(0.3)
            consumer.redeliver_unacknowledged_messages()
            await consumer.acknowledge(held)
            assert await all_of(consumer) == [b"%d" % number for number in range(3, 10)]

    run(main())


def test_a_consumer_reattaches_after_a_seek_that_is_lost_after_its_deadline() -> None:
    async def main() -> None:
        rig = Rig()
        rig.store(*(b"%d" % number for number in range(5)))
        async with rig.client() as client:
            consumer = await subscribed(client)
            rig.service.faults = FaultPlan([Fault(kind="drop", command="SEEK", times=9)])
            seeking = asyncio.ensure_future(consumer.seek(0))
            await asyncio.sleep(29)
            rig.dialer.drop()  # the SEEK is sent again
            await asyncio.sleep(3)
            rig.dialer.drop()
            with pytest.raises(encore.TransportError):
                await seeking
            rig.service.faults = None
            await asyncio.sleep(5)
            rig.service.unload(rig.service.catalogue.topic(TOPIC))
            await asyncio.sleep(5)
            assert consumer.is_connected()
            assert len(await all_of(consumer)) == 5

    run(main())


def test_consecutive_seeks_do_not_wait_for_a_backoff() -> None:
    """The broker closes a consumer that seeks. This is no loss that would make retries slower."""

    async def main() -> None:
        rig = Rig()
        rig.store(*(b"%d" % number for number in range(5)))
        async with rig.client() as client:
            consumer = await subscribed(client)
            began = asyncio.get_running_loop().time()
            for _ in range(20):
                await consumer.seek(0)
                assert (await consumer.receive(timeout=5)).data() == b"0"
            assert asyncio.get_running_loop().time() - began < 1  # virtual seconds

    run(main())


@pytest.mark.parametrize("sought", [True, False])
def test_acks_during_a_seek_are_held_back_until_it_completes(sought: bool) -> None:
    """Sent after the SEEK, they would be void after a success. After a failure they are sent."""

    async def main() -> None:
        rig = Rig(BrokerSettings(record=True))
        rig.store(b"a", b"b")
        async with rig.client() as client:
            consumer = await subscribed(client, ack_group_time_ms=0)
            messages = [await consumer.receive(timeout=5) for _ in range(2)]
            slow = Fault(kind="delay", command="SEEK", delay_ms=5_000)
            wrong = Fault(kind="refuse", command="SEEK", error="MetadataError")
            rig.service.faults = FaultPlan([slow if sought else wrong])
            rig.service.recorder.clear()
            seeking = asyncio.ensure_future(consumer.seek(0))
            while transport_consumer_of(consumer).snapshot().topics[0].state is not State.SEEKING:
                await asyncio.sleep(0)
            await consumer.acknowledge(messages)
            assert not rig.service.recorder.find("ACK")
            if sought:
                await asyncio.sleep(4)
                assert not rig.service.recorder.find("ACK")
                await seeking
                assert await all_of(consumer) == [b"a", b"b"]
            else:
                with pytest.raises(encore.PulsarException):
                    await seeking
                await asyncio.sleep(1)
                assert rig.service.recorder.find("ACK")
                assert consumer.statistics().unacked == 0

    run(main())


def test_a_seek_waits_until_earlier_acks_have_been_written() -> None:
    """A broker that still writes an ack takes the cursor reset for done, and skips it."""

    async def main() -> None:
        rig = Rig(BrokerSettings(record=True))
        rig.store(b"a", b"b", b"c")
        async with rig.client() as client:
            consumer = await subscribed(client, ack_group_time_ms=0)
            first, second, third = [await consumer.receive(timeout=5) for _ in range(3)]
            await consumer.acknowledge(first)
            await asyncio.sleep(0.2)
            seeking = asyncio.ensure_future(consumer.seek(0))
            await asyncio.sleep(0.1)
            await consumer.acknowledge(second)
            await consumer.negative_acknowledge(third, delay=0)
            await seeking
            [ack], [seek] = (rig.service.recorder.find(name) for name in ("ACK", "SEEK"))
            assert seek.at_ms - ack.at_ms >= 499.9  # half a second, as a float
            assert await all_of(consumer) == [b"a", b"b", b"c"]
            await asyncio.sleep(5)
            began = asyncio.get_running_loop().time()
            await consumer.seek(0)
            assert asyncio.get_running_loop().time() - began < 0.2, "nothing was acked lately"

    run(main())


def test_acks_of_entries_that_are_no_messages_do_not_block_a_seek_for_ever() -> None:
    async def main() -> None:
        rig = Rig()
        rig.store(b"a")
        async with rig.client() as client:
            consumer = await subscribed(client)

            async def markers() -> None:
                while True:
                    rig.store(b"marker", marker_type=1)
                    await asyncio.sleep(0.1)

            coming = asyncio.ensure_future(markers())
            await asyncio.sleep(0.2)
            async with asyncio.timeout(3):
                await consumer.seek(0)
            coming.cancel()
            assert await all_of(consumer) == [b"a"]

    run(main())


def test_acks_are_sent_before_permits_when_a_connection_is_lost_before_the_seek() -> None:
    async def main() -> None:
        rig = Rig(BrokerSettings(record=True))
        rig.store(b"a", b"b")
        async with rig.client() as client:
            consumer = await subscribed(client, ack_group_time_ms=0)
            first, second = [await consumer.receive(timeout=5) for _ in range(2)]
            await consumer.acknowledge(first)
            seeking = asyncio.ensure_future(consumer.seek(0))
            await asyncio.sleep(0.1)
            await consumer.acknowledge(second)
            rig.service.recorder.clear()
            rig.dialer.drop()
            await seeking
            received = [each.type for each in rig.service.recorder.find(direction="in")]
            assert received.index("ACK") < received.index("FLOW") < received.index("SEEK")
            [ack], [seek] = (rig.service.recorder.find(name) for name in ("ACK", "SEEK"))
            assert seek.at_ms - ack.at_ms >= 499.9  # half a second, as a float
            assert await all_of(consumer) == [b"a", b"b"]

    run(main())


@pytest.mark.parametrize("given_up", [False, True])
@pytest.mark.parametrize("gap_s", [0, 0.005, 0.1, 0.3])
def test_the_later_of_two_seeks_wins(gap_s: float, given_up: bool) -> None:
    async def main() -> None:
        rig = Rig()
        rig.store(*(b"%d" % number for number in range(6)))
        async with rig.client() as client:
            consumer = await subscribed(client, ack_group_time_ms=0)
            await consumer.acknowledge(await consumer.receive(timeout=5))
            first = asyncio.ensure_future(consumer.seek(encore.MessageId.latest))
            await asyncio.sleep(gap_s)
            if given_up:
                first.cancel()
            await consumer.seek(encore.MessageId.earliest)
            await asyncio.wait((first,))
            assert len(await all_of(consumer)) == 6

    run(main())


def test_a_seek_of_one_topic_does_not_delay_the_acks_of_another() -> None:
    async def main() -> None:
        rig = Rig(BrokerSettings(record=True))
        other = f"{TOPIC}-2"
        rig.store(b"a")
        async with rig.client() as client:
            async with await client.create_producer(other) as producer:
                await producer.send(b"b")
            consumer = await client.subscribe(
                [TOPIC, other],
                "s",
                consumer_type=ConsumerType.Shared,
                initial_position=InitialPosition.Earliest,
                ack_group_time_ms=0,
                ack_receipt_enabled=True,
            )
            both = [await consumer.receive(timeout=5) for _ in range(2)]
            here, there = sorted(both, key=lambda message: message.topic_name())
            rig.service.faults = FaultPlan([Fault(kind="drop", command="SEEK")])
            seeking = asyncio.ensure_future(consumer.seek(here.message_id()))
            await asyncio.sleep(1)
            async with asyncio.timeout(1):
                await consumer.acknowledge(there)
            seeking.cancel()

    run(main())


def test_a_consumer_closed_during_a_seek_sends_its_acks_at_once() -> None:
    async def main() -> None:
        rig = Rig()
        rig.store(b"a", b"b", b"c")
        async with rig.client() as client:
            for unanswered in (False, True):
                consumer = await subscribed(client)
                await consumer.acknowledge(await consumer.receive(timeout=5))
                rig.service.faults = FaultPlan([Fault(kind="drop", command="SEEK", times=9)])
                seeking = asyncio.ensure_future(consumer.seek(0))
                await asyncio.sleep(1 if unanswered else 0.1)
                await consumer.acknowledge(await consumer.receive(timeout=5))
                async with asyncio.timeout(1):
                    await consumer.close()
                seeking.cancel()
                rig.service.faults = None
                again = await subscribed(client)
                assert len(await all_of(again, timeout=60)) == 1
                await again.seek(0)
                await again.close()

    run(main())


def test_a_nack_during_a_failed_seek_does_not_redeliver_acked_messages() -> None:
    async def main() -> None:
        rig = Rig()
        rig.store(b"a", b"b", b"c", batch=True)
        async with rig.client() as client:
            consumer = await subscribed(client, receiver_queue_size=3)
            acked, again = [], await consumer.receive(timeout=5)
            acked = [await consumer.receive(timeout=5) for _ in range(2)]
            other = await subscribed(client)
            rig.service.faults = FaultPlan([Fault(kind="drop", command="SEEK", times=9)])
            seeking = asyncio.ensure_future(consumer.seek(0))
            await asyncio.sleep(1)
            await consumer.acknowledge(acked)
            await consumer.negative_acknowledge(again, delay=0)
            with pytest.raises(encore.TransportError):
                await seeking
            rig.service.faults = None
            received = await asyncio.gather(all_of(consumer, 60), all_of(other, 60))
            assert [*received[0], *received[1]] == [b"a"]

    run(main())


def test_nacks_that_fell_due_during_an_outage_are_not_delayed_further() -> None:
    async def main() -> None:
        rig = Rig()
        rig.store(b"a", b"b")
        async with rig.client() as client:
            consumer = await subscribed(client)
            for _ in range(2):
                message = await consumer.receive(timeout=5)
                await consumer.negative_acknowledge(message, delay=0.5)
            rig.service.start_outage(20)
            await asyncio.sleep(1)
            while not consumer.is_connected():
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            assert consumer.statistics().nacked == 0
            assert await all_of(consumer) == [b"a", b"b"]

    run(main())


def test_closing_the_consumer_ends_a_seek_that_waits_for_a_connection() -> None:
    async def main() -> None:
        rig = Rig()
        async with rig.client() as client:
            consumer = await subscribed(client)
            rig.service.start_outage(60)
            seeking = asyncio.ensure_future(consumer.seek(0))
            await asyncio.sleep(1)
            await consumer.close()
            with pytest.raises(encore.ClosedError):
                async with asyncio.timeout(1):
                    await seeking

    run(main())


@pytest.mark.parametrize("batch", [False, True])
def test_messages_before_a_seek_are_delivered_after_another_consumer_seeks_back(
    batch: bool,
) -> None:
    async def main() -> None:
        rig = Rig()
        sent = [b"%d" % number for number in range(5)]
        rig.store(*sent, batch=batch)
        async with rig.client() as client:
            consumer = await subscribed(client, ack_group_time_ms=0)
            messages = [await consumer.receive(timeout=5) for _ in range(5)]
            await consumer.acknowledge(messages)
            await consumer.seek(messages[3 if batch else 4].message_id())
            if batch:
                await consumer.acknowledge(await consumer.receive(timeout=5))
            await asyncio.sleep(120)  # no duplicates are expected any more
            other = await subscribed(client)
            await other.seek(0)
            await other.close()
            assert sorted(set(await all_of(consumer))) == sent

    run(main())


def test_with_a_queue_of_0_a_duplicate_does_not_satisfy_a_receive() -> None:
    async def main() -> None:
        rig = Rig()
        rig.store(b"a", b"b", b"c")
        async with rig.client() as client:
            consumer = await subscribed(client, receiver_queue_size=0)
            await consumer.receive(timeout=5)  # held by the application
            rig.dialer.drop()  # the broker sends the held message again, and it is dropped
            await asyncio.sleep(5)
            assert (await consumer.receive(timeout=600)).data() == b"b"

    run(main())


def test_an_ack_without_a_receipt_is_not_retried_after_close() -> None:
    async def main() -> None:
        rig = Rig()
        rig.store(b"a")
        async with rig.client() as client:
            consumer = await subscribed(client)
            rig.service.faults = FaultPlan(
                [Fault(kind="drop", command="ACK_RESPONSE", direction="out", times=9)]
            )
            await consumer.acknowledge(await consumer.receive(timeout=5))
            await asyncio.sleep(0.5)
            await consumer.close()
            tried = 0
            acks = parts_of(consumer).acks
            flush = acks._flush_ready

            def counted(most: int) -> None:
                nonlocal tried
                tried += 1
                flush(most)

            acks._flush_ready = counted  # type: ignore[method-assign]
            await asyncio.sleep(3600)
            assert tried < 3

    run(main())


def test_a_reader_with_a_flapping_connection_holds_no_more_than_its_queue() -> None:
    async def main() -> None:
        rig = Rig()
        rig.store(*(b"%d" % number for number in range(2000)))
        async with rig.client() as client:
            reader = await client.create_reader(
                TOPIC, encore.MessageId.earliest, receiver_queue_size=100
            )
            for _ in range(10):
                await asyncio.sleep(1)
                rig.dialer.drop()
            await asyncio.sleep(1)
            (transport_consumer,) = scopes_of(rig.transport)[0].handles
            assert transport_consumer.snapshot().topics[0].unconsumed <= 100  # type: ignore[union-attr]
            assert [(await reader.read_next()).data() for _ in range(2000)] == [
                b"%d" % number for number in range(2000)
            ]

    run(main())


def test_a_sender_that_waits_for_a_lazy_partition_gets_its_error() -> None:
    async def main() -> None:
        network = Network()
        network.service.catalogue.create_partitioned(TOPIC, 2)
        producer = await network.producer(
            lazy_start_partitioned_producers=True,
            max_pending_messages=1,
            block_if_queue_full=True,
            batching_enabled=False,
        )
        idle = next(part for part in producer.parts if not part.started)
        producer._choice.partition = lambda *_: idle.partition  # type: ignore[method-assign]
        network.drop()
        network.reachable = False
        sends = [producer.publish(OutgoingMessage(payload=b"%d" % number)) for number in range(3)]
        async with asyncio.timeout(600):
            outcomes = await asyncio.gather(*sends, return_exceptions=True)
        assert all(isinstance(each, encore.TransportError) for each in outcomes)
        producer.abandon()

    run(main())
