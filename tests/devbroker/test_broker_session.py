"""Sessions without sockets, in virtual time and without an event loop."""

from __future__ import annotations

import asyncio
import math
import time

import pytest
from session_kit import HandClock, MemoryClient, send_frame

from pulsar_encore import testing
from pulsar_encore.devbroker import BrokerSettings, Fault, FaultPlan
from pulsar_encore.devbroker.broker_service import BrokerService
from pulsar_encore.devbroker.clock import LoopClock
from pulsar_encore.wire import pulsar_pb2 as pb

HOUR_S = 3600.0


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def service(clock: HandClock) -> BrokerService:
    return BrokerService(BrokerSettings(delayed_strict=True), clock, lambda seconds: None)


def test_a_coordinator_that_is_not_loaded_refuses_and_keeps_its_transactions(
    clock: HandClock, service: BrokerService
) -> None:
    client = MemoryClient(service)
    txn = {"txnid_most_bits": 0, "txnid_least_bits": 0}
    client.send(pb.CommandNewTxn(request_id=1, txn_ttl_seconds=1_000))
    service.coordinator.loaded = False
    client.send(
        pb.CommandTcClientConnectRequest(request_id=2, tc_id=0),
        pb.CommandNewTxn(request_id=3, txn_ttl_seconds=1_000),
        pb.CommandAddPartitionToTxn(request_id=4, partitions=["t"], **txn),
        pb.CommandAddSubscriptionToTxn(request_id=5, **txn),
        pb.CommandEndTxn(request_id=6, txn_action=pb.TxnAction.COMMIT, **txn),
    )
    clock.advance()
    bodies = {
        body.request_id: body.error
        for frame in client.got
        for _, body in frame.command.ListFields()
        if hasattr(body, "request_id") and body.HasField("error")
    }
    assert bodies == dict.fromkeys(range(2, 7), pb.ServerError.TransactionCoordinatorNotFound)
    clock.advance(1)
    service.coordinator.loaded = True
    clock.advance(1)
    assert service.coordinator.is_open((0, 0))  # until a client connects to the coordinator
    client.send(pb.CommandTcClientConnectRequest(request_id=7, tc_id=0))
    clock.advance()
    assert not service.coordinator.is_open((0, 0))


def test_an_hour_of_delay_takes_no_time_in_virtual_time() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        clock = LoopClock(loop)
        service = BrokerService(BrokerSettings(delayed_strict=True), clock, lambda seconds: None)
        client = MemoryClient(service)
        arrival: asyncio.Future[float] = loop.create_future()
        client.on_message = lambda message: arrival.set_result(loop.time())
        client.subscribe()
        client.produce()
        begun = loop.time()
        client.publish(b"late", deliver_at_time=clock.wall_ms() + int(HOUR_S * 1000))
        after = await arrival - begun
        assert client.payloads() == [b"late"]
        assert not client.closed
        client.session.abort()
        return after

    begun = time.monotonic()
    # The wall clock has whole milliseconds.
    assert HOUR_S - 0.001 <= testing.run(main()) <= HOUR_S + 1
    assert time.monotonic() - begun < HOUR_S / 60


def test_a_session_needs_no_event_loop(clock: HandClock, service: BrokerService) -> None:
    client = MemoryClient(service)
    client.subscribe()
    client.produce()
    client.publish(b"now")
    client.publish(b"late", deliver_at_time=clock.wall_ms() + int(HOUR_S * 1000))
    clock.advance(HOUR_S - 1)
    assert client.names() == [
        *("CONNECTED", "SUCCESS", "PRODUCER_SUCCESS", "SEND_RECEIPT", "SEND_RECEIPT", "MESSAGE")
    ]
    clock.advance(2)
    assert client.payloads() == [b"now", b"late"]


def test_the_byte_stream_can_be_cut_anywhere(clock: HandClock, service: BrokerService) -> None:
    client = MemoryClient(service)
    client.subscribe()
    client.produce()
    data = send_frame(b"one")
    for at in range(len(data)):
        client.session.receive(data[at : at + 1])
    clock.advance()
    assert client.names()[-2:] == ["SEND_RECEIPT", "MESSAGE"]


def test_all_output_of_one_step_is_sent_in_one_write(
    clock: HandClock, service: BrokerService
) -> None:
    client = MemoryClient(service)
    client.subscribe()
    assert client.names() == []
    clock.advance()
    assert client.names() == ["CONNECTED", "SUCCESS"]


def test_a_silent_client_is_closed_at_the_second_keep_alive(
    clock: HandClock, service: BrokerService
) -> None:
    silent, lively = MemoryClient(service, answers_pings=False), MemoryClient(service)
    clock.advance(59.9)
    assert not silent.closed
    clock.advance(0.2)
    assert silent.closed and silent.session.closed
    assert not lively.closed
    assert service.sessions == {lively.session}


def test_invalid_bytes_close_the_session_after_queued_output_is_written(
    clock: HandClock, service: BrokerService
) -> None:
    client = MemoryClient(service)
    client.session.receive(b"\x00\x00\x00\x02\x00\x00")
    assert client.closed
    assert client.names() == ["CONNECTED"]


def test_entries_of_a_lost_connection_go_to_other_consumers(
    clock: HandClock, service: BrokerService
) -> None:
    first, second = MemoryClient(service), MemoryClient(service)
    first.subscribe()
    second.produce()
    second.publish(b"one")
    clock.advance()
    assert first.names()[-1] == "MESSAGE"
    second.subscribe()
    first.session.lost()
    clock.advance()
    assert second.names()[-1] == "MESSAGE"


def test_a_client_that_does_not_read_is_sent_nothing_until_it_reads(
    clock: HandClock, service: BrokerService
) -> None:
    client = MemoryClient(service)
    client.subscribe()
    client.produce()
    client.session.pause_writing()
    client.publish(b"one")
    clock.advance()
    assert client.payloads() == []
    client.session.resume_writing()
    clock.advance()
    assert len(client.payloads()) == 1


def test_faults_run_on_the_same_clock(clock: HandClock, service: BrokerService) -> None:
    service.faults = FaultPlan(
        [Fault(kind="delay", command="MESSAGE", delay_ms=5000), Fault(kind="drop", command="ACK")]
    )
    client = MemoryClient(service)
    client.subscribe()
    client.produce()
    client.publish(b"one")
    clock.advance(4.9)
    assert client.payloads() == []
    clock.advance(0.2)
    assert len(client.payloads()) == 1
    message = client.got[-1].command.message
    client.send(
        pb.CommandAck(
            consumer_id=1, message_id=[message.message_id], ack_type=pb.CommandAck.Individual
        )
    )
    assert service.catalogue.states("t")[0].subscriptions["s"].backlog == 1
    assert service.recorder is not None
    assert [round(one.at_ms) for one in service.recorder.find("MESSAGE", "out")] == [5000]


def test_a_silent_exclusive_consumer_is_replaced(clock: HandClock, service: BrokerService) -> None:
    exclusive = pb.CommandSubscribe.Exclusive
    holder, other = MemoryClient(service, answers_pings=False), MemoryClient(service)
    holder.subscribe(kind=exclusive)
    other.subscribe(kind=exclusive)
    clock.advance(4.9)
    assert other.names() == ["CONNECTED"]
    clock.advance(0.2)
    assert holder.closed
    assert other.names() == ["CONNECTED", "SUCCESS"]


def test_a_silent_holder_of_sticky_ranges_is_replaced_and_a_live_one_is_not(
    clock: HandClock, service: BrokerService
) -> None:
    silent, lively, other = (
        MemoryClient(service, answers_pings=answers) for answers in (False, True, True)
    )
    for client, span in ((silent, (0, 100)), (lively, (200, 300)), (other, (50, 60))):
        client.subscribe(kind=pb.CommandSubscribe.Key_Shared, keySharedMeta=sticky(span))
    clock.advance(5.1)
    assert silent.closed
    assert other.names() == ["CONNECTED", "SUCCESS"]
    refused = MemoryClient(service)
    refused.subscribe(kind=pb.CommandSubscribe.Key_Shared, keySharedMeta=sticky((250, 400)))
    clock.advance()
    assert refused.names() == ["CONNECTED", "ERROR"]
    assert not lively.closed


def sticky(span: tuple[int, int]) -> pb.KeySharedMeta:
    start, end = span
    return pb.KeySharedMeta(keySharedMode=pb.STICKY, hashRanges=[pb.IntRange(start=start, end=end)])


def test_an_infinite_keep_alive_interval_disables_keep_alives(clock: HandClock) -> None:
    settings = BrokerSettings(keep_alive_s=math.inf)
    service = BrokerService(settings, clock, lambda seconds: None)
    silent = MemoryClient(service, answers_pings=False)
    clock.advance(24 * HOUR_S)
    assert not silent.closed
    assert silent.names() == ["CONNECTED"]


def test_a_non_persistent_topic_keeps_no_delivered_message(
    clock: HandClock, service: BrokerService
) -> None:
    topic = "non-persistent://public/default/t"
    client = MemoryClient(service)
    client.subscribe(topic=topic)
    client.produce(topic=topic)
    for payload in (b"0", b"1"):
        client.publish(payload)
    clock.advance()
    assert client.payloads() == [b"0", b"1"]
    places = [
        frame.command.message.message_id
        for frame in client.got
        if frame.command.type == pb.BaseCommand.MESSAGE
    ]
    places += [
        frame.command.send_receipt.message_id
        for frame in client.got
        if frame.command.type == pb.BaseCommand.SEND_RECEIPT
    ]
    assert [(place.ledgerId, place.entryId) for place in places] == [(0, 0)] * 4
    [subscription] = service.catalogue.topic(topic).subscriptions.values()
    assert subscription.backlog == 0
    client.send(pb.CommandGetLastMessageId(consumer_id=1, request_id=9))
    clock.advance()
    assert client.got[-1].command.error.error == pb.UnknownError
    assert service.catalogue.in_namespace("public/default") == []
    assert service.catalogue.in_namespace("public/default", "non-persistent") == [topic]
