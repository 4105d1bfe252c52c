"""Ack receipts: unconfirmed acks of any age are sent again, and an ack can be awaited."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import pytest
from consumer_kit import (
    TOPIC,
    Subscribe,
    close_without_backlog,
    logged,
    now_s,
    payloads,
    put_numbers,
    receive_n,
    receive_numbers,
    settle,
)

from pulsar_encore import (
    Client,
    ClosedError,
    ConfigurationError,
    Consumer,
    ConsumerType,
    Message,
    MessageNotHeldError,
    NotSupportedError,
    ReceiveTimeout,
    TransportError,
)
from pulsar_encore.consumer.settlement.ack_sender import AckSender
from pulsar_encore.consumer.topic_states import TopicStates
from pulsar_encore.options import ConsumerOptions
from pulsar_encore.testing import Fault, FaultPlan, MemoryTransport
from pulsar_encore.transport.interface import AckPlan, Capabilities
from pulsar_encore.transport.native.consumer.native_consumer import NativeConsumer

UNANSWERED_S = 20  # not so long that an ack without a receipt is sent again


def lost(transport: MemoryTransport, nth: int = 1, times: int = 1) -> None:
    """Drop some acks without closing the connection."""
    transport.faults = FaultPlan([Fault(kind="drop", command="ACK", nth=nth, times=times)])


def sent(transport: MemoryTransport) -> list[AckPlan]:
    return [command.details for command in transport.recorded("ACK")]


# Without being asked for


async def test_unconfirmed_acks_are_sent_again_after_a_reconnect_before_any_permit(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 4, batch=2)
    lost(transport)
    consumer = await subscribe()
    first, second, third, fourth = await receive_n(consumer, 4)
    await consumer.acknowledge([first, second, third])
    await asyncio.sleep(UNANSWERED_S)
    transport.disconnect()
    await asyncio.sleep(1)
    before = len(transport.commands)
    transport.reconnect()
    await settle()
    names = [command.name for command in transport.commands[before : before + 3]]
    assert names == ["SUBSCRIBE", "ACK", "FLOW"]
    assert (sent(transport)[1].entries, sent(transport)[1].partial) == (
        sent(transport)[0].entries,
        sent(transport)[0].partial,
    )
    with pytest.raises(ReceiveTimeout):
        await consumer.receive(timeout=10)
    await consumer.acknowledge(fourth)
    await close_without_backlog(transport, consumer)


async def test_an_unconfirmed_cumulative_ack_is_sent_again_after_a_reconnect(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 3)
    lost(transport)
    consumer = await subscribe(consumer_type=ConsumerType.Exclusive)
    messages = await receive_n(consumer, 3)
    await consumer.acknowledge_cumulative(messages[1])
    await asyncio.sleep(UNANSWERED_S)
    transport.disconnect()
    transport.reconnect()
    await settle()
    assert [plan.cumulative for plan in sent(transport)] == [sent(transport)[0].cumulative] * 2
    assert transport.backlog(TOPIC, "s") == 1


@pytest.mark.parametrize(("later_s", "times"), [(0.5, 2), (1.5, 1)])
async def test_a_confirmed_ack_is_sent_again_only_within_a_second_of_its_receipt(
    transport: MemoryTransport, subscribe: Subscribe, later_s: float, times: int
) -> None:
    """From its receipt on: a broker answers before it persists."""
    put_numbers(transport, 1)
    transport.faults = FaultPlan([Fault(kind="delay", command="ACK", delay_ms=20_000)])
    consumer = await subscribe()
    await consumer.acknowledge(await consumer.receive())
    await asyncio.sleep(20.1 + later_s)
    transport.disconnect()
    transport.reconnect()
    await asyncio.sleep(1)
    assert len(sent(transport)) == times


async def test_without_receipts_an_old_ack_is_not_sent_again_after_a_reconnect(
    transport: MemoryTransport, subscribe: Subscribe, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_receipt = NativeConsumer.ack

    def without(transport_consumer: NativeConsumer, plan: AckPlan) -> None:
        with_receipt(transport_consumer, plan)

    monkeypatch.setattr(NativeConsumer, "ack", without)
    put_numbers(transport, 1)
    lost(transport)
    consumer = await subscribe()
    message = await consumer.receive()
    await consumer.acknowledge(message)
    await asyncio.sleep(3600)
    transport.disconnect()
    transport.reconnect()
    assert (await consumer.receive(timeout=5)).data() == message.data()


async def test_acks_of_a_failed_receipt_are_sent_again() -> None:
    """Ack sets are sent in their current state; acks from before a seek are not sent again."""
    loop = asyncio.get_running_loop()
    plans: list[AckPlan] = []
    receipts: list[asyncio.Future[None]] = []

    def ack(plan: AckPlan) -> Awaitable[None]:
        plans.append(plan)
        receipts.append(loop.create_future())
        return receipts[-1]

    transport_consumer: Any = SimpleNamespace(
        can_ack=lambda topic_number: True,
        ack=ack,
        capabilities=Capabilities(name="model"),
        topic_of=lambda topic_number: (TOPIC, -1),
    )
    options = ConsumerOptions(
        topics=(TOPIC,), pattern=None, subscription_name="s", ack_group_time_ms=0
    )
    queue: Any = []
    topic_states = TopicStates(transport_consumer, options, loop)
    sender = AckSender(transport_consumer, topic_states, options, loop, queue)
    state = topic_states.by_number[0]
    entry, _ = state.arrive((1, 0), 4, 0, range(4))
    single, _ = state.arrive((1, 1), 0, 0, (0,))
    assert entry is not None and single is not None
    sender.added(state, state.ack(entry, 0))
    sender.added(state, state.ack(single, 0))
    state.ack_cumulative((0, 9), -1, 1)
    sender.added(state, 1)
    (waiting,) = sender.receipts.of([state])
    assert sender.receipts.of([state]) == [waiting], "one future for all"
    receipts[0].set_exception(TransportError("no answer in time"))
    receipts[1].cancel()
    receipts[2].set_exception(TransportError("no answer in time"))
    await asyncio.sleep(1)
    assert plans[3].entries == [(1, 1)]
    assert plans[3].partial == [(1, 0, 4, 0b1110)]
    assert plans[3].cumulative == (0, 9, 1, -1)
    assert not waiting.done()
    receipts[3].set_result(None)
    await waiting
    sender.added(state, state.ack(entry, 1))
    (waiting,) = sender.receipts.of([state])
    state.reset()
    sender.receipts.sought([state])
    await waiting
    receipts[4].set_exception(TransportError("no answer in time"))
    await asyncio.sleep(1)
    assert len(plans) == 5 and not len(state.acks)
    sender.close(ClosedError())


# ack_receipt_enabled


async def test_an_ack_returns_when_the_broker_has_confirmed_it(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 4, batch=2)
    transport.faults = FaultPlan([Fault(kind="delay", command="ACK", delay_ms=500, times=3)])
    consumer = await subscribe(ack_receipt_enabled=True)
    one, two, three, _ = await receive_n(consumer, 4)
    began = now_s()
    await consumer.acknowledge(one)  # a part: grouped for 0.1 s, and confirmed 0.5 s later
    assert now_s() - began == pytest.approx(0.6)
    await consumer.acknowledge([two, three])
    assert now_s() - began == pytest.approx(1.2)
    await consumer.acknowledge(one)
    assert now_s() - began == pytest.approx(1.2), "it was confirmed before"
    assert transport.backlog(TOPIC, "s") == 1


async def test_a_cumulative_ack_returns_when_it_is_confirmed(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 3)
    transport.faults = FaultPlan([Fault(kind="delay", command="ACK", delay_ms=500)])
    consumer = await subscribe(
        ack_receipt_enabled=True, ack_group_time_ms=0, consumer_type=ConsumerType.Failover
    )
    messages = await receive_n(consumer, 3)
    began = now_s()
    await consumer.acknowledge_cumulative(messages[2])
    assert now_s() - began == pytest.approx(0.5)
    assert transport.backlog(TOPIC, "s") == 0


@pytest.mark.parametrize("away_s", [0, 5])
async def test_an_ack_call_waits_for_its_receipt_over_a_reconnect(
    transport: MemoryTransport, subscribe: Subscribe, away_s: float
) -> None:
    put_numbers(transport, 3)
    lost(transport)
    consumer = await subscribe(ack_receipt_enabled=True)
    messages = await receive_n(consumer, 3)
    waiting = asyncio.ensure_future(consumer.acknowledge(messages[0]))
    await asyncio.sleep(UNANSWERED_S)
    transport.disconnect()
    also = asyncio.ensure_future(consumer.acknowledge(messages[1].message_id()))
    await asyncio.sleep(away_s)
    assert not (waiting.done() or also.done())
    transport.reconnect()
    await asyncio.gather(waiting, also)
    assert transport.backlog(TOPIC, "s") == 1


async def test_an_ack_call_waits_for_its_receipt_over_several_lost_acks(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 1)
    lost(transport, times=5)  # the first ack and each retry
    consumer = await subscribe(ack_receipt_enabled=True)
    waiting = asyncio.ensure_future(consumer.acknowledge(await consumer.receive()))
    for _ in range(3):
        await asyncio.sleep(5)
        assert not waiting.done()
        transport.disconnect()
        await asyncio.sleep(0.1)
        transport.reconnect()
    await waiting
    assert transport.backlog(TOPIC, "s") == 0


@pytest.mark.parametrize("count", [400, 3_000])
async def test_acking_a_list_waits_for_the_receipts_of_all_its_commands(
    transport: MemoryTransport, subscribe: Subscribe, count: int
) -> None:
    consumer, messages = await receive_numbers(
        transport,
        subscribe,
        count,
        ack_receipt_enabled=True,
        ack_group_time_ms=1_000,
        ack_group_max_size=100,
    )
    lost(transport, nth=count // 100)
    waiting = asyncio.ensure_future(consumer.acknowledge(messages))
    await asyncio.sleep(UNANSWERED_S)
    assert transport.backlog(TOPIC, "s") == 100
    assert not waiting.done()
    transport.disconnect()
    transport.reconnect()
    await waiting
    assert transport.backlog(TOPIC, "s") == 0


async def test_concurrent_ack_calls_share_one_command_and_start_no_task(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer, messages = await receive_numbers(
        transport, subscribe, 1_000, ack_receipt_enabled=True, ack_group_max_size=10_000
    )
    tasks = len(asyncio.all_tasks())
    calls = [consumer.acknowledge(each) for each in messages]
    assert len(asyncio.all_tasks()) == tasks
    for call in calls:
        await call
    assert len(sent(transport)) == 1
    assert transport.backlog(TOPIC, "s") == 0


async def test_an_ack_that_is_not_awaited_reports_no_missing_receipt(
    transport: MemoryTransport, subscribe: Subscribe, caplog: pytest.LogCaptureFixture
) -> None:
    consumer, messages = await receive_numbers(transport, subscribe, 2, ack_receipt_enabled=True)
    consumer.acknowledge(messages[0])
    await asyncio.sleep(1)
    assert transport.backlog(TOPIC, "s") == 1
    transport.disconnect()
    consumer.acknowledge(messages[1])
    await consumer.close()
    gc.collect()
    assert [each.name for each in logged(caplog)] == ["pulsar_encore.consumer.consumer"]


async def test_an_ack_call_that_times_out_is_still_sent_and_ends_no_other_call(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer, (one, two) = await receive_numbers(transport, subscribe, 2, ack_receipt_enabled=True)
    transport.disconnect()
    other = asyncio.ensure_future(consumer.acknowledge(two))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(consumer.acknowledge(one), 5)
    transport.reconnect()
    await other
    assert transport.backlog(TOPIC, "s") == 0, "it was acked all the same"


async def test_a_refused_ack_raises_without_waiting_for_a_receipt(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 1)
    consumer = await subscribe(ack_receipt_enabled=True)
    other = await subscribe("persistent://public/default/u", subscription_name="t")
    message = await consumer.receive()
    with pytest.raises(MessageNotHeldError):
        await other.acknowledge(message)
    await consumer.negative_acknowledge(message, 60)
    began = now_s()
    await consumer.acknowledge(message)
    assert now_s() - began == pytest.approx(0.1)


async def test_an_ack_call_from_a_thread_waits_for_its_receipt(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 1)
    consumer = await subscribe(ack_receipt_enabled=True, ack_group_time_ms=0)
    message = await consumer.receive()
    lost(transport)
    calls: list[Any] = []
    thread = threading.Thread(target=lambda: calls.append(consumer.acknowledge(message)))
    thread.start()
    thread.join()
    waiting = asyncio.ensure_future(calls[0])
    await asyncio.sleep(5)
    assert not waiting.done()
    transport.disconnect()
    transport.reconnect()
    while not waiting.done():
        await asyncio.sleep(0.01)
    await waiting
    assert transport.backlog(TOPIC, "s") == 0


# Endings


async def test_close_waits_for_receipts(transport: MemoryTransport, subscribe: Subscribe) -> None:
    put_numbers(transport, 1)
    transport.faults = FaultPlan([Fault(kind="delay", command="ACK", delay_ms=2_000)])
    consumer = await subscribe(ack_receipt_enabled=True)
    waiting = asyncio.ensure_future(consumer.acknowledge(await consumer.receive()))
    await asyncio.sleep(0.01)
    began = now_s()
    await consumer.close()
    await waiting
    assert now_s() - began == pytest.approx(2)


async def test_an_ack_call_that_waits_at_close_raises_closed_error(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    messages = put_numbers(transport, 1)
    lost(transport, times=2)
    consumer = await subscribe(ack_receipt_enabled=True)
    waiting = asyncio.ensure_future(consumer.acknowledge(await consumer.receive()))
    await asyncio.sleep(1)
    await consumer.close()
    with pytest.raises(ClosedError, match="before the broker confirmed"):
        await waiting
    again = await subscribe()
    assert payloads(await receive_n(again, 1)) == messages


async def test_a_seek_ends_the_wait_for_a_receipt(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 2)
    lost(transport)
    consumer = await subscribe(ack_receipt_enabled=True)
    messages = await receive_n(consumer, 2)
    waiting = asyncio.ensure_future(consumer.acknowledge(messages[1]))
    await asyncio.sleep(1)
    await consumer.seek(0)
    await waiting
    assert payloads(await receive_n(consumer, 2)) == payloads(messages)


async def test_a_transport_shutdown_fails_ack_calls_that_wait_for_a_receipt(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 1)
    lost(transport)
    consumer = await subscribe(ack_receipt_enabled=True)
    waiting = asyncio.ensure_future(consumer.acknowledge(await consumer.receive()))
    await asyncio.sleep(1)
    transport.shutdown()
    with pytest.raises(ClosedError, match="shut down"):
        await waiting


async def test_acks_on_a_non_persistent_topic_wait_for_no_receipt(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    topic = "non-persistent://public/default/t"
    consumer = await subscribe(topic, ack_receipt_enabled=True)
    transport.put(topic, b"x")
    began = now_s()
    await consumer.acknowledge(await consumer.receive())
    assert now_s() == began


async def test_ack_receipt_enabled_needs_a_transport_with_receipts(
    transport: MemoryTransport,
) -> None:
    transport.capabilities = Capabilities(name="model", receipts=False)
    async with Client("pulsar://nowhere:6650", transport=transport) as client:
        with pytest.raises(NotSupportedError, match="the model transport gets none"):
            await client.subscribe(TOPIC, "s", ack_receipt_enabled=True)
        with pytest.raises(ConfigurationError, match="ack_receipt_enabled"):
            await client.subscribe(TOPIC, "s", ack_receipt_enabled=1)  # type: ignore[arg-type]
    assert transport.recorded("SUBSCRIBE") == []


async def test_with_retry_enable_the_ack_of_a_retry_letter_waits_for_its_receipt(
    transport: MemoryTransport,
    client: Client,
) -> None:
    transport.put(TOPIC, b"a")
    consumer: Consumer = await client.subscribe(
        TOPIC, "s", ConsumerType.Shared, retry_enable=True, ack_receipt_enabled=True
    )
    transport.put(TOPIC, b"b")
    message: Message = await consumer.receive()
    await consumer.reconsume_later(message)
    letter = await consumer.receive(timeout=5)
    await consumer.acknowledge(letter)
    assert transport.backlog(letter.topic_name(), "s") == 0
