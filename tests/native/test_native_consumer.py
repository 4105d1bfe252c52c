"""The native consumer on the development broker: flow, acks, redelivery, losses and seeks."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from native_kit import TOPIC, Collector, Rig, at_random, message_frame, run, settle, subscription

from pulsar_encore.devbroker.broker_settings import BrokerSettings
from pulsar_encore.devbroker.rules.faults import Fault, FaultPlan
from pulsar_encore.errors import ClosedError, TransportTimeout
from pulsar_encore.exceptions import (
    ConsumerBusy,
    NotConnected,
    OperationNotSupported,
    UnknownError,
)
from pulsar_encore.options import ConsumerCryptoFailureAction, ConsumerType
from pulsar_encore.transport.interface import AckPlan
from pulsar_encore.transport.native.client_settings import ClientSettings
from pulsar_encore.transport.native.consumer import entry_reader, seek
from pulsar_encore.transport.native.consumer import native_consumer as consumer_module
from pulsar_encore.transport.native.consumer.permits import Permits
from pulsar_encore.values.message_id import MessageId
from pulsar_encore.wire import compress
from pulsar_encore.wire import pulsar_pb2 as pb
from pulsar_encore.wire.compression import CodecError
from pulsar_encore.wire.entries import encode_batch, encode_body


def backlog(rig: Rig, topic: str = TOPIC, name: str = "s") -> int:
    return int(rig.service.catalogue.topic(topic).subscriptions[name].backlog)


def acks(listener: Collector) -> AckPlan:
    return AckPlan(0, None, [(each.ledger, each.entry) for each in listener.deliveries], [])


def test_plain_messages_and_batches_are_delivered_and_acked() -> None:
    async def main() -> None:
        rig = Rig()
        transport_consumer, listener = await rig.subscribe()
        rig.store(b"a", b"b")
        rig.store(b"c", b"d", b"e", batch=True)
        await settle()
        assert listener.payloads == [b"a", b"b", b"c", b"d", b"e"]
        assert [each.batch_size for each in listener.deliveries] == [0, 0, 3]
        transport_consumer.ack(acks(listener))
        await settle()
        assert backlog(rig) == 0
        await transport_consumer.close()
        assert rig.service.catalogue.topic(TOPIC).subscriptions["s"].consumers == []

    run(main())


def test_a_batch_that_compaction_emptied_is_acked_and_costs_only_its_entry() -> None:
    async def main() -> None:
        rig = Rig()
        removed = pb.SingleMessageMetadata(compacted_out=True)
        rig.store_batch((removed, b"a"), (removed, b"b"))
        rig.store_batch((pb.SingleMessageMetadata(), b"c"), (removed, b"d"))
        rig.store(b"e")
        transport_consumer, listener = await rig.subscribe()
        assert listener.payloads == [b"c", b"e"]
        assert [tuple(each.indexes) for each in listener.deliveries] == [(0,), (0,)]
        assert backlog(rig) == 2
        transport_consumer.ack(acks(listener))
        await settle()
        assert backlog(rig) == 0

    run(main())


def test_an_undecryptable_batch_costs_the_permits_that_the_broker_counted() -> None:
    async def main() -> None:
        rig = Rig()
        key = pb.EncryptionKeys(key="k", value=b"?")
        rig.store(*(b"%d" % each for each in range(8)), batch=True, encryption_keys=[key])
        transport_consumer, listener = await rig.subscribe()
        state = rig.service.catalogue.topic(TOPIC)
        for _ in range(2):
            (consumer,) = state.subscriptions["s"].consumers
            assert transport_consumer.snapshot().topics[0].open_permits == consumer.permits
            stored = state.log.at(state.log.base)
            transport_consumer.ack(
                AckPlan(0, None, [], [(stored.ledger, stored.entry, 8, 0b1111_0100)])
            )
            await settle()
            rig.dialer.drop()
            await settle(1)  # the entry comes without its acked messages
        assert not listener.deliveries

    run(main())


@pytest.mark.parametrize("kind", ["encrypted", "compressed"])
@pytest.mark.parametrize("large", [False, True])
def test_batches_that_arrive_as_one_message_cost_the_permits_that_the_broker_counted(
    kind: str, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred batches of 8 pass a queue of 20. The payloads of large ones wait for a thread."""

    def unavailable(codec: int, *arguments: object) -> bytes:
        if codec == pb.NONE:
            return bytes(arguments[0])  # type: ignore[call-overload, no-any-return]
        raise CodecError("the codec is not installed")

    async def main() -> None:
        rig = Rig()
        fields: dict[str, Any] = {"compression": pb.ZSTD, "uncompressed_size": 2**20 + large}
        if kind == "encrypted":
            fields = {"encryption_keys": [pb.EncryptionKeys(key="k", value=b"?")]}
        for _ in range(100):
            rig.store(*(b"%d" % each for each in range(8)), batch=True, **fields)
        rig.store(b"last")
        consume = ConsumerCryptoFailureAction.CONSUME
        transport_consumer, listener = await rig.subscribe(
            receiver_queue_size=20, crypto_failure_action=consume
        )
        (consumer,) = rig.service.catalogue.topic(TOPIC).subscriptions["s"].consumers
        taken = 0
        for _ in range(120):
            count, taken = len(listener.deliveries) - taken, len(listener.deliveries)
            transport_consumer.consumed(0, count)
            await settle()
            assert transport_consumer.snapshot().topics[0].open_permits == consumer.permits
        assert [each.batch_size for each in listener.deliveries] == [0] * 101
        transport_consumer.ack(acks(listener))
        await settle()
        assert backlog(rig) == 0

    monkeypatch.setattr(entry_reader, "decompress", unavailable)
    run(main())


def test_the_consumer_requests_no_more_than_its_queue_until_messages_are_consumed() -> None:
    async def main() -> None:
        rig = Rig()
        rig.store(*(b"%d" % number for number in range(100)))
        transport_consumer, listener = await rig.subscribe(receiver_queue_size=20)
        assert len(listener.payloads) == 20
        transport_consumer.consumed(0, 9)
        await settle()
        assert len(listener.payloads) == 20
        transport_consumer.consumed(0, 1)
        await settle()
        assert len(listener.payloads) == 30
        transport_consumer.stop_flow()
        transport_consumer.consumed(0, 30)
        await settle()
        assert len(listener.payloads) == 30

    run(main())


@given(st.integers(1, 50), st.lists(st.tuples(st.integers(1, 120), st.integers(0, 60))))
def test_the_window_counts_queued_and_permitted_messages(
    queue: int, steps: list[tuple[int, int]]
) -> None:
    """The broker counts the same way: it sends a whole entry while one permit is left."""
    permits = Permits(queue, 1 << 30)
    left = permits.take_due()
    held = 0
    permits.arrived(1, 1, 10)
    left -= 1
    held += 1
    left += permits.take_due()
    for batch, consumed in steps:
        if left > 0:
            left -= batch
            held += batch
            permits.arrived(batch, batch, 10 * batch)
        consumed = min(consumed, held)
        is_due = permits.consumed(consumed)
        held -= consumed
        given = permits.take_due()
        assert is_due == (given > 0)
        left += given
        assert left == permits.open
        assert left + held <= max(queue, 1)
        assert held > 0 or left > 0, "nothing here, and nothing asked for"


def test_permits_are_due_when_half_the_window_is_free() -> None:
    permits = Permits(20, 100_000)
    assert permits.take_due() == 16
    permits.arrived(1, 1, 10)
    assert permits.take_due() == 4, "the rest, once the size of the first message is known"
    permits.arrived(19, 19, 190)
    assert [permits.consumed(1) for _ in range(10)] == [False] * 9 + [True]
    assert permits.take_due() == 10
    assert [permits.consumed(1) for _ in range(10)] == [False] * 9 + [True]


def test_the_window_follows_the_size_of_the_messages() -> None:
    permits = Permits(1000, 100_000)
    permits.take_due()
    for size, window in ((10, 1000), (20_000, 5), (10, 1000), (50_000, 2)):
        for _ in range(100):  # the average follows the last deliveries
            permits.arrived(1, 1, size)
            permits.consumed(1)
        permits.reset()
        assert abs(permits.window - window) <= 1
        assert permits.take_due() == permits.window
        assert not permits.consumed(0)


def test_the_window_shrinks_to_the_byte_limit() -> None:
    permits = Permits(1000, 100_000)
    first = permits.take_due()
    assert first < 1000
    for _ in range(first):
        permits.arrived(1, 1, 10_000)
        permits.consumed(1)
    permits.take_due()
    assert permits.window == 10
    assert permits.open <= 16


def test_compressed_messages_count_with_their_uncompressed_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a queue of a thousand messages that are mostly zeros would fill the memory."""
    size, most = 1 << 20, 8 << 20
    monkeypatch.setattr(consumer_module, "MOST_BYTES", most)

    async def main() -> None:
        rig = Rig()
        packed = {"compression": pb.ZLIB, "uncompressed_size": size}
        rig.store(*[compress(pb.ZLIB, bytes(size))] * 60, **packed)
        transport_consumer, listener = await rig.subscribe(receiver_queue_size=1000)
        taken = 0
        while taken < 60:
            arrived = len(listener.deliveries) - taken
            # One read decompresses up to 4 MiB in addition to the entries that waited for memory.
            assert 0 < arrived <= most // size + 4
            taken += arrived
            transport_consumer.consumed(0, arrived)
            await settle()
        assert all(payload == bytes(size) for payload in listener.payloads)

    run(main())


def test_entries_are_redelivered_at_once_by_id() -> None:
    async def main() -> None:
        rig = Rig()
        transport_consumer, listener = await rig.subscribe()
        rig.store(b"a", b"b", b"c")
        await settle()
        second = listener.deliveries[1]
        transport_consumer.redeliver(0, [(second.ledger, [second.entry])])
        await settle()
        assert listener.payloads == [b"a", b"b", b"c", b"b"]
        assert listener.deliveries[-1].redelivery_count == 1
        transport_consumer.redeliver(0, [])
        await settle()
        assert len(listener.deliveries) == 4

    run(main())


def test_after_a_partial_ack_of_a_batch_only_the_rest_is_redelivered() -> None:
    async def main() -> None:
        rig = Rig()
        transport_consumer, listener = await rig.subscribe(receiver_queue_size=100)
        rig.store(*(b"%02d" % number for number in range(80)), batch=True)
        await settle()
        entry = listener.deliveries[0]
        rest = (1 << 79) | 1
        transport_consumer.ack(AckPlan(0, None, [], [(entry.ledger, entry.entry, 80, rest)]))
        transport_consumer.redeliver(0, [(entry.ledger, [entry.entry])])
        await settle()
        again = listener.deliveries[1]
        assert (list(again.indexes), again.ack_set) == ([0, 79], rest)
        assert [message.data() for message in again.messages] == [b"00", b"79"]
        assert backlog(rig) == 1
        transport_consumer.ack(acks(listener))
        await settle()
        assert backlog(rig) == 0

    run(main())


def test_a_lost_connection_is_reported_and_pending_acks_are_sent_before_any_permits() -> None:
    async def main() -> None:
        rig = Rig()
        transport_consumer = await rig.transport.subscribe(subscription())

        class Acking(Collector):
            def on_connected(self, only: Any = None) -> None:
                self.calls.append(("connected", only))
                transport_consumer.ack(acks(self))

        listener = Acking()
        transport_consumer.start(listener)
        await settle()
        listener.calls.clear()
        rig.store(b"a", b"b")
        await settle()
        rig.dialer.drop()
        assert listener.names == ["disconnected"]
        assert not transport_consumer.can_ack(0)
        with pytest.raises(NotConnected):
            transport_consumer.ack(acks(listener))
        rig.store(b"c")
        await settle(1)
        assert listener.names == ["disconnected", "connected"]
        assert listener.payloads == [b"a", b"b", b"c"]
        assert backlog(rig) == 1

    run(main())


def test_a_listener_that_fails_once_on_connected_still_gets_all_messages() -> None:
    async def main() -> None:
        rig = Rig()
        transport_consumer = await rig.transport.subscribe(subscription())
        failures = [RuntimeError("once")]

        class Failing(Collector):
            def on_connected(self, only: Any = None) -> None:
                self.calls.append(("connected", only))
                if failures:
                    raise failures.pop()

        listener = Failing()
        transport_consumer.start(listener)
        rig.store(b"a")
        await settle()
        rig.dialer.drop()
        rig.store(b"b")
        await settle(10)
        assert failures == []
        assert listener.names[-1] == "connected"
        assert sorted(set(listener.payloads)) == [b"a", b"b"]
        transport_consumer.ack(acks(listener))
        await settle()
        assert backlog(rig) == 0

    run(main())


def test_after_an_unload_all_unacked_messages_are_redelivered() -> None:
    async def main() -> None:
        rig = Rig()
        _, listener = await rig.subscribe()
        rig.store(b"a", b"b")
        await settle()
        rig.service.unload(rig.service.catalogue.topic(TOPIC))
        await settle(1)
        assert listener.payloads == [b"a", b"b", b"a", b"b"]
        assert listener.names[-2:] == ["disconnected", "connected"]

    run(main())


def test_a_consumer_survives_a_long_outage_and_refused_subscribes() -> None:
    async def main() -> None:
        rig = Rig()
        transport_consumer, listener = await rig.subscribe()
        rig.service.faults = FaultPlan([Fault(kind="refuse", command="SUBSCRIBE", times=2)])
        rig.service.start_outage(600)
        await settle(500)
        assert not transport_consumer.is_connected()
        rig.store(b"a")
        await settle(300)
        assert transport_consumer.is_connected()
        assert listener.payloads == [b"a"]

    run(main())


def test_a_refusal_after_a_loss_is_retried_until_it_ends() -> None:
    async def main() -> None:
        rig = Rig()
        _, listener = await rig.subscribe(consumer_type=ConsumerType.Exclusive)
        with pytest.raises(ConsumerBusy):
            await OtherClient(rig).subscribe(consumer_type=ConsumerType.Exclusive)
        refusal = Fault(kind="refuse", command="SUBSCRIBE", error="AuthorizationError", times=9)
        rig.service.faults = FaultPlan([refusal])
        rig.dialer.drop()
        await settle(5)
        assert listener.names[-1] == "retrying"
        await settle(100)
        assert listener.names[-1] == "connected"
        assert "failed" not in listener.names

    run(main())


class OtherClient(Rig):
    """A second client of the same broker."""

    def __init__(self, rig: Rig) -> None:
        self.dialer = rig.dialer
        self.settings = rig.settings
        self.transport = type(rig.transport)("pulsar://memory:6650", dialer=rig.dialer)


def test_a_broker_that_accepts_and_never_answers_causes_a_timeout_error() -> None:
    async def main() -> None:
        rig = Rig(settings=ClientSettings(operation_timeout_s=5))
        rig.dialer.service.faults = FaultPlan([Fault(kind="drop", command="SUBSCRIBE", times=99)])
        with pytest.raises(TransportTimeout):
            await rig.transport.subscribe(subscription())
        await settle()
        assert rig.service.catalogue.topic(TOPIC).subscriptions == {}

    run(main())


def test_a_cancelled_subscribe_leaves_no_consumer() -> None:
    async def main() -> None:
        for steps in range(12):
            rig = Rig()
            task = asyncio.create_task(rig.transport.subscribe(subscription()))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            outcome = (await asyncio.gather(task, return_exceptions=True))[0]
            await settle(1)
            states = rig.service.catalogue.topics
            consumers = [
                one
                for state in states.values()
                for sub in state.subscriptions.values()
                for one in sub.consumers
            ]
            assert consumers == [] or not isinstance(outcome, BaseException), steps

    run(main())


def store_chunks(rig: Rig, uuid: str, *pieces: bytes) -> None:
    total = sum(map(len, pieces))
    for at, piece in enumerate(pieces):
        rig.store(
            piece,
            uuid=uuid,
            chunk_id=at,
            num_chunks_from_msg=len(pieces),
            total_chunk_msg_size=total,
        )


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.Exclusive])
def test_a_chunked_message_is_acked_and_redelivered_whole(kind: ConsumerType) -> None:
    async def main() -> None:
        rig = Rig(BrokerSettings(rewind_overtaken=0))
        transport_consumer, listener = await rig.subscribe(
            consumer_type=kind, receiver_queue_size=2
        )
        store_chunks(rig, "u", b"one ", b"two ", b"three")
        rig.store(b"plain")
        await settle()
        assert listener.payloads == [b"one two three", b"plain"]
        whole = listener.deliveries[0]
        assert whole.first_chunk == (whole.ledger, whole.entry - 2)
        assert backlog(rig) == 4
        transport_consumer.consumed(0, 2)
        if kind is ConsumerType.Shared:
            transport_consumer.redeliver(0, [(whole.ledger, [whole.entry])])
            await settle()
            assert listener.payloads[2:] == [b"one two three"]
        else:
            transport_consumer.redeliver_all()
            await settle(1)
            assert listener.payloads[2:] == [b"one two three", b"plain"]
        transport_consumer.ack(acks(listener))
        await settle()
        assert backlog(rig) == 0

    run(main())


def test_chunks_cut_by_a_loss_are_redelivered_and_a_rest_without_a_first_chunk_is_dropped() -> None:
    async def main() -> None:
        rig = Rig()
        _, listener = await rig.subscribe()
        store_chunks(rig, "u", b"one ", b"two ")
        state = rig.service.catalogue.topic(TOPIC)
        rig.dialer.drop()
        await settle(1)
        assert listener.payloads == [b"one two "]
        rig.store(b"x", uuid="v", chunk_id=1, num_chunks_from_msg=2, total_chunk_msg_size=2)
        await settle(200)
        assert len(listener.deliveries) == 1
        assert state.subscriptions["s"].backlog == 2, "the rest of v was acked: it never comes"

    run(main())


def test_exclusive_rewinds_with_an_epoch_and_drops_messages_in_flight() -> None:
    async def main() -> None:
        rig = Rig(BrokerSettings(rewind_overtaken=0))
        transport_consumer, listener = await rig.subscribe(consumer_type=ConsumerType.Exclusive)
        rig.store(b"a", b"b", b"c")
        await settle()
        first = listener.deliveries[0]
        transport_consumer.ack(AckPlan(0, (first.ledger, first.entry, 0, -1), [], []))
        transport_consumer.redeliver_all()
        await settle(1)
        assert listener.payloads == [b"a", b"b", b"c", b"b", b"c"]
        rig.store(*(b"%d" % number for number in range(3000)))
        await settle(0.001)
        transport_consumer.redeliver_all(0)
        listener.deliveries.clear()
        for _ in range(100):
            transport_consumer.consumed(0, 100)
            await settle(0.1)
        assert listener.payloads == [b"b", b"c", *(b"%d" % number for number in range(3000))]

    run(main())


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.Exclusive])
@pytest.mark.parametrize("inclusive", [True, False])
def test_a_seek_goes_to_an_id_or_after_its_message(kind: ConsumerType, inclusive: bool) -> None:
    async def main() -> None:
        rig = Rig()
        transport_consumer, listener = await rig.subscribe(
            consumer_type=kind, start_message_id_inclusive=inclusive
        )
        rig.store(b"a", b"b")
        rig.store(b"c", b"d", b"e", batch=True)
        rig.store(b"f")
        await settle()
        plain, batch = listener.deliveries[1], listener.deliveries[2]
        listener.deliveries.clear()
        await transport_consumer.seek(MessageId(-1, plain.ledger, plain.entry))
        await settle(1)
        assert listener.payloads == [b"b", b"c", b"d", b"e", b"f"][not inclusive :]
        assert "seek" in listener.names
        assert "disconnected" not in listener.names
        listener.deliveries.clear()
        await transport_consumer.seek(MessageId(-1, batch.ledger, batch.entry, 1, batch_size=3))
        await settle(1)
        assert listener.payloads == [b"d", b"e", b"f"][not inclusive :]
        listener.deliveries.clear()
        await transport_consumer.seek(MessageId.earliest)
        await settle(1)
        assert listener.payloads == [b"a", b"b", b"c", b"d", b"e", b"f"]
        listener.deliveries.clear()
        await transport_consumer.seek(0)
        await settle(1)
        assert len(listener.payloads) == 6

    run(main())


def test_a_seek_that_loses_its_connection_still_takes_effect() -> None:
    async def main() -> None:
        for kind in ("close_before", "close_after"):
            rig = Rig()
            transport_consumer, listener = await rig.subscribe()
            rig.store(b"a", b"b")
            await settle()
            transport_consumer.ack(acks(listener))
            listener.deliveries.clear()
            rig.service.faults = FaultPlan([Fault(kind=kind, command="SEEK")])  # type: ignore[arg-type]
            await transport_consumer.seek(MessageId.earliest)
            await settle(2)
            assert listener.payloads[-2:] == [b"a", b"b"]
            assert listener.names.count("seek") == 1

    run(main())


def test_a_seek_waits_for_an_earlier_seek_that_the_broker_still_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(seek, "FENCED", "refused by the fault plan")

    async def main() -> None:
        rig = Rig(settings=ClientSettings(operation_timeout_s=5))
        transport_consumer, listener = await rig.subscribe()
        rig.store(b"a", b"b")
        await settle()
        transport_consumer.ack(acks(listener))
        refusals = Fault(kind="refuse", command="SEEK", times=3, error="UnknownError")
        rig.service.faults = FaultPlan([refusals])
        await transport_consumer.seek(MessageId.earliest)
        await settle(1)
        assert listener.payloads == [b"a", b"b", b"a", b"b"]
        rig.service.faults = FaultPlan([replace(refusals, times=1000)])
        with pytest.raises(UnknownError):
            await transport_consumer.seek(MessageId.earliest)

    run(main())


def test_a_reader_continues_after_its_last_delivery_after_a_loss() -> None:
    async def main() -> None:
        rig = Rig()
        rig.store(b"a", b"b")
        rig.store(b"c", b"d", batch=True)
        transport_consumer, listener = await rig.subscribe(
            durable=False,
            consumer_type=ConsumerType.Exclusive,
            start_message_id=MessageId.earliest,
        )
        assert listener.payloads == [b"a", b"b", b"c", b"d"]
        assert not await transport_consumer.has_message_available()
        rig.dialer.drop()
        await settle(1)
        rig.store(b"e")
        await settle(1)
        assert listener.payloads == [b"a", b"b", b"c", b"d", b"e"]
        last = await transport_consumer.last_message_id()
        assert (last.ledger_id(), last.entry_id()) == (
            listener.deliveries[-1].ledger,
            listener.deliveries[-1].entry,
        )

    run(main())


def test_a_reader_that_sought_a_time_returns_to_it_after_a_loss() -> None:
    async def main() -> None:
        for lost_again in (False, True):
            rig = Rig()
            transport_consumer, listener = await rig.subscribe(
                durable=False,
                consumer_type=ConsumerType.Exclusive,
                start_message_id=MessageId.latest,
            )
            await transport_consumer.seek(1_700_000_000_000)
            await settle(1)
            if lost_again:  # a second loss while it reattaches
                rig.service.faults = FaultPlan([Fault(kind="close_after", command="SEEK")])
            rig.dialer.drop()
            rig.store(b"a", b"b")
            await settle(3)
            assert listener.payloads == [b"a", b"b"]
            assert listener.names.count("seek") == 1
            rig.dialer.drop()
            rig.store(b"c")
            await settle(3)
            assert listener.payloads == [b"a", b"b", b"c"]
            await transport_consumer.close()

    run(main())


def test_a_request_between_two_attachments_waits_for_the_second() -> None:
    async def main() -> None:
        rig = Rig()
        rig.store(b"a", b"b")
        transport_consumer, listener = await rig.subscribe(
            durable=False,
            consumer_type=ConsumerType.Exclusive,
            start_message_id=MessageId.earliest,
        )
        await transport_consumer.seek(MessageId.earliest)
        assert not await transport_consumer.has_message_available(), (
            "all messages arrived with the second attachment"
        )
        assert listener.payloads == [b"a", b"b", b"a", b"b"]
        rig.dialer.drop()
        assert (await transport_consumer.last_message_id()).entry_id() == 1
        rig.dialer.drop()
        await transport_consumer.unsubscribe()
        await settle(1)
        assert not rig.service.catalogue.topic(TOPIC).subscriptions

    run(main())


def test_a_request_while_the_broker_is_down_ends_after_the_operation_timeout() -> None:
    async def main() -> None:
        rig = Rig(settings=ClientSettings(operation_timeout_s=10.0))
        loop = asyncio.get_running_loop()
        transport_consumer, _ = await rig.subscribe()
        rig.dialer.reachable = False
        rig.dialer.drop()
        began = loop.time()
        with pytest.raises(NotConnected):
            await transport_consumer.last_message_id()
        assert loop.time() - began == pytest.approx(10.0)
        asking = asyncio.ensure_future(transport_consumer.last_message_id())
        await asyncio.sleep(0)
        await transport_consumer.close()
        with pytest.raises(ClosedError):
            await asking

    run(main())


def test_a_reader_can_start_inside_a_batch() -> None:
    async def main() -> None:
        rig = Rig()
        rig.store(b"a", b"b", b"c", batch=True)
        state = rig.service.catalogue.topic(TOPIC)
        entry = state.log.at(state.log.base)
        start = MessageId(-1, entry.ledger, entry.entry, 1, batch_size=3)
        for inclusive, expected in ((True, [b"b", b"c"]), (False, [b"c"])):
            transport_consumer, listener = await rig.subscribe(
                subscription_name=f"r-{inclusive}",
                durable=False,
                consumer_type=ConsumerType.Exclusive,
                start_message_id=start,
                start_message_id_inclusive=inclusive,
            )
            assert listener.payloads == expected
            assert await transport_consumer.has_message_available() is False
            await transport_consumer.close()

    run(main())


def test_has_message_available_works_before_the_first_message() -> None:
    async def main() -> None:
        rig = Rig()
        rig.store(b"a", b"b")
        for start, expected in ((MessageId.earliest, True), (MessageId.latest, False)):
            transport_consumer = await rig.transport.subscribe(
                subscription(
                    subscription_name=f"r-{expected}",
                    durable=False,
                    consumer_type=ConsumerType.Exclusive,
                    start_message_id=start,
                )
            )
            assert await transport_consumer.has_message_available() is expected
            await transport_consumer.close()

    run(main())


def test_new_partitions_are_found_and_have_their_own_topic_state() -> None:
    async def main() -> None:
        rig = Rig(settings=ClientSettings(discovery_s=60))
        rig.service.catalogue.create_partitioned(TOPIC, 2)
        transport_consumer, listener = await rig.subscribe()
        for each in range(2):
            rig.store(b"%d" % each, topic=f"{TOPIC}-partition-{each}")
        await settle()
        assert sorted(listener.payloads) == [b"0", b"1"]
        assert {
            transport_consumer.topic_of(each.topic_number)[1] for each in listener.deliveries
        } == {0, 1}
        with pytest.raises(OperationNotSupported):
            await transport_consumer.last_message_id()
        rig.service.catalogue.create_partitioned(TOPIC, 3)
        rig.store(b"2", topic=f"{TOPIC}-partition-2")
        await settle(61)
        assert sorted(listener.payloads) == [b"0", b"1", b"2"]

    run(main())


def test_new_topics_of_a_pattern_are_found() -> None:
    async def main() -> None:
        rig = Rig()
        rig.store(b"a", topic="persistent://public/default/jobs-1")
        rig.store(b"x", topic="persistent://public/default/other")
        _, listener = await rig.subscribe(
            topics=(),
            pattern="persistent://public/default/jobs-.*",
            pattern_auto_discovery_period=5,
        )
        assert listener.payloads == [b"a"]
        rig.store(b"b", topic="persistent://public/default/jobs-2")
        await settle(6)
        assert listener.payloads == [b"a", b"b"]

    run(main())


@pytest.mark.parametrize("seed", range(5))
def test_a_fragmented_backlog_with_losses_is_received_completely(seed: int) -> None:
    """Whatever the losses, every message is delivered until it is acked, and not after."""

    async def main() -> None:
        rng = Random(seed)
        rig = Rig(cuts=at_random(rng))
        count = 0
        for _ in range(60):
            size = rng.choice([1, 1, 5, 30])
            rig.store(*(b"%d" % (count + each) for each in range(size)), batch=size > 1)
            count += size
        transport_consumer, listener = await rig.subscribe(receiver_queue_size=25)
        seen: set[bytes] = set()
        for _ in range(400):
            taken, listener.deliveries = listener.deliveries, []
            for each in taken:
                seen.update(message.data() for message in each.messages)
                transport_consumer.consumed(0, len(each.messages))
            try:
                if taken:
                    transport_consumer.ack(
                        AckPlan(0, None, [(one.ledger, one.entry) for one in taken], [])
                    )
            except NotConnected:
                pass
            if rng.random() < 0.05:
                rig.dialer.drop()
            await settle(0.2)
            if backlog(rig) == 0:
                break
        assert backlog(rig) == 0
        assert seen == {b"%d" % number for number in range(count)}

    run(main())


@given(st.data())
def test_runs_of_plain_messages_equal_single_messages(data: st.DataObject) -> None:
    """The fast path for many messages gives the same result, whichever fields change."""
    entries = data.draw(st.sampled_from([0, 120, 16_370, 2_097_140]))
    sequence = data.draw(st.sampled_from([0, 120, 16_370, 2_097_140]))
    steps = data.draw(
        st.lists(
            st.tuples(
                st.sampled_from(["p", "p", "p", "p", "other"]),
                st.sampled_from([0, 0, 0, 1, 70_000]),  # ms until the next publish time
                st.sampled_from([3, 3, 3, 4, 200]),  # bytes of payload
                st.sampled_from(["plain"] * 8 + ["key", "batch", "again", "no sum"]),
            ),
            max_size=40,
        )
    )
    cut = data.draw(st.integers(1, 900))
    published, stream, expected = 1_700_000_000_000, b"", []
    for at, (producer, later, size, what) in enumerate(steps):
        published += later
        metadata = pb.MessageMetadata(
            producer_name=producer, sequence_id=sequence + at, publish_time=published
        )
        payload = b"%d" % at * size
        content = payload
        if what == "key":
            metadata.partition_key = "k"
        elif what == "batch":
            metadata.num_messages_in_batch = 1
            content = encode_batch([(pb.SingleMessageMetadata(), payload)])
        body = encode_body(metadata, content, checksum=what != "no sum")
        count = 2 if what == "again" else 0
        expected.append((5, entries + at, count, payload, published))
        stream += message_frame(entries + at, body, ledger=5, redelivery_count=count)

    async def main() -> None:
        rig = Rig()
        _, listener = await rig.subscribe()
        (line,) = rig.dialer.lines
        for at in range(0, len(stream), cut):
            line.client.receive(stream[at : at + cut])
        arrived = [
            (each.ledger, each.entry, each.redelivery_count, message.data(), message)
            for each in listener.deliveries
            for message in each.messages
        ]
        assert [(*head, last.publish_timestamp()) for *head, last in arrived] == expected

    run(main())
