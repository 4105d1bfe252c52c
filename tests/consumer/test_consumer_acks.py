"""Acks are grouped, held while disconnected, sent again, and never cover unacked messages."""

from __future__ import annotations

import asyncio
from copy import copy
from types import SimpleNamespace
from typing import Any

import pytest
from consumer_kit import (
    REDELIVER,
    TOPIC,
    Subscribe,
    close_without_backlog,
    counted,
    now_s,
    parts_of,
    payloads,
    put_numbers,
    receive_all,
    receive_n,
    receive_numbers,
    settle,
)

from pulsar_encore import (
    ClosedError,
    ConfigurationError,
    Consumer,
    ConsumerType,
    Message,
    MessageId,
    MessageNotHeldError,
    ReceiveTimeout,
)
from pulsar_encore.consumer.consumer_factory import assemble, open_transport_consumer
from pulsar_encore.consumer.delivery_handler import DeliveryHandler
from pulsar_encore.consumer.settlement.ack_sender import AckSender
from pulsar_encore.consumer.topic_states import TopicStates
from pulsar_encore.options import ConsumerOptions, InitialPosition
from pulsar_encore.testing import BrokerSettings, Fault, FaultPlan, MemoryTransport
from pulsar_encore.transport.interface import (
    AckPlan,
    Capabilities,
    Deliveries,
    Delivery,
    each_delivery,
)


def plans(transport: MemoryTransport) -> list[AckPlan]:
    return [command.details for command in transport.recorded("ACK")]


def acked_at(transport: MemoryTransport) -> list[int]:
    return [command.at_ms for command in transport.recorded("ACK")]


# Grouping


async def test_acks_within_one_group_time_are_sent_together(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 10)
    consumer = await subscribe(ack_group_time_ms=100)
    for message in await receive_n(consumer, 10):
        await consumer.acknowledge(message)
        await asyncio.sleep(0.005)
    await asyncio.sleep(1)
    assert [len(plan.entries) for plan in plans(transport)] == [10]
    assert acked_at(transport) == [100]


async def test_acks_are_sent_when_the_group_reaches_its_maximum_size(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 10)
    consumer = await subscribe(ack_group_time_ms=10_000, ack_group_max_size=4)
    for message in await receive_n(consumer, 10):
        await consumer.acknowledge(message)
    await settle()
    assert [len(plan.entries) for plan in plans(transport)] == [4, 4]
    await consumer.close()
    assert [len(plan.entries) for plan in plans(transport)] == [4, 4, 2]


async def test_each_topic_has_its_own_maximum_size_of_a_group(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    """Also if another topic was far from it a moment ago."""
    one, other = f"{TOPIC}-1", f"{TOPIC}-2"
    consumer = await subscribe(one, other, ack_group_time_ms=10_000, ack_group_max_size=4)
    for number in range(8):
        transport.put(one, b"%d" % number)
    transport.put(other, b"0")
    messages = await receive_n(consumer, 9)
    of_one = [message for message in messages if message.topic_name() == one]
    of_other = [message for message in messages if message.topic_name() == other]
    for message in (*of_one[:3], *of_other, of_one[3]):
        assert not plans(transport)
        await consumer.acknowledge(message)
    await settle()
    assert sorted(len(plan.entries) for plan in plans(transport)) == [1, 4]
    for message in of_one[4:]:
        await consumer.acknowledge(message)
    await settle()
    assert sorted(len(plan.entries) for plan in plans(transport)) == [1, 4, 4]


async def test_acks_after_a_flush_wait_no_longer_than_the_group_time(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 9)
    consumer = await subscribe(ack_group_time_ms=100, ack_group_max_size=4)
    for message in await receive_n(consumer, 9):
        await consumer.acknowledge(message)
    await asyncio.sleep(1)
    assert [len(plan.entries) for plan in plans(transport)] == [4, 4, 1]
    assert acked_at(transport)[-1] == 100


async def test_acks_are_sent_by_message_count_before_the_unacked_window_is_full(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 100, batch=5)
    consumer = await subscribe(ack_group_time_ms=10_000, max_unacked_messages=200)
    for message in await receive_n(consumer, 60):
        await consumer.acknowledge(message)
    await settle()
    assert [len(plan.entries) for plan in plans(transport)] == [4, 4, 4]


async def test_a_small_unacked_window_does_not_stall_behind_the_group_time() -> None:
    """With grouping by time alone each 100 messages would cost 100 ms."""
    transport = MemoryTransport(BrokerSettings(namespaces=None, max_unacked_per_consumer=100))
    put_numbers(transport, 2000, batch=10)

    options = ConsumerOptions(
        topics=(TOPIC,),
        pattern=None,
        subscription_name="s",
        consumer_type=ConsumerType.Shared,
        initial_position=InitialPosition.Earliest,
        max_unacked_messages=100,
    )
    consumer = Consumer(assemble(await open_transport_consumer(transport, options), options))
    for _ in range(2000):
        await consumer.acknowledge(await consumer.receive())
    assert now_s() < 0.5


async def test_acks_are_sent_at_once_with_a_group_time_of_zero(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 2)
    consumer = await subscribe(ack_group_time_ms=0)
    for message in await receive_n(consumer, 2):
        await consumer.acknowledge(message)
    await settle()
    assert [len(plan.entries) for plan in plans(transport)] == [1, 1]


async def test_partial_acks_are_sent_as_one_ack_set_and_the_last_acks_as_the_whole_entry(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer, messages = await receive_numbers(transport, subscribe, 4, batch=4)
    await consumer.acknowledge(messages[0])
    await consumer.acknowledge(messages[2])
    await asyncio.sleep(1)
    key = (messages[0].message_id().ledger_id(), 0)
    assert plans(transport)[0].partial == [(*key, 4, 0b1010)]
    await consumer.acknowledge(messages[1])
    await consumer.acknowledge(messages[3])
    await asyncio.sleep(1)
    assert plans(transport)[1] == AckPlan(0, None, [key], [])
    assert transport.backlog(TOPIC, "s") == 0


async def test_acking_a_message_twice_sends_one_ack(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer, (message, _) = await receive_numbers(transport, subscribe, 2, batch=2)
    await consumer.acknowledge(message)
    await consumer.acknowledge(message)
    await asyncio.sleep(1)
    await consumer.acknowledge(message)
    await asyncio.sleep(1)
    assert len(plans(transport)) == 1


async def test_acking_a_list_sends_whole_entries_and_ack_sets_in_one_command(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer, messages = await receive_numbers(transport, subscribe, 6, batch=3)
    await consumer.acknowledge(
        [messages[0], messages[1].message_id(), messages[2], messages[3], messages[4]]
    )
    await consumer.acknowledge([])
    await consumer.close()
    assert [(len(plan.entries), len(plan.partial)) for plan in plans(transport)] == [(1, 1)]


async def test_close_sends_pending_acks(transport: MemoryTransport, subscribe: Subscribe) -> None:
    put_numbers(transport, 3)
    consumer = await subscribe(ack_group_time_ms=60_000)
    await consumer.acknowledge(await receive_n(consumer, 3))
    assert plans(transport) == []
    await close_without_backlog(transport, consumer)


# Connections


async def test_acks_made_while_disconnected_are_sent_after_the_reconnect(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer, messages = await receive_numbers(transport, subscribe, 8, batch=2)
    transport.disconnect()
    assert not consumer.is_connected()
    for message in messages[:5]:
        await consumer.acknowledge(message)
    await asyncio.sleep(10)
    assert plans(transport) == []
    assert consumer.statistics().unsent_acks == 3
    before = len(transport.commands)
    transport.reconnect()
    await settle()
    names = [command.name for command in transport.commands[before : before + 3]]
    assert names == ["SUBSCRIBE", "ACK", "FLOW"], "acks go before more is asked for"
    with pytest.raises(ReceiveTimeout):
        await consumer.receive(timeout=5)  # the rest is still held here
    await consumer.acknowledge(messages[5:])
    await close_without_backlog(transport, consumer)


@pytest.mark.parametrize("keep_ack_sets", [True, False])
async def test_acked_indexes_are_remembered_across_a_reconnect(
    transport: MemoryTransport, subscribe: Subscribe, keep_ack_sets: bool
) -> None:
    """A broker that stops in order forgets partial acks; the client does not.

    `docs/notes/consumer-semantics.md#partial-acks`
    """
    consumer, messages = await receive_numbers(transport, subscribe, 4, batch=4)
    await consumer.acknowledge(messages[1])
    await consumer.acknowledge(messages[3])
    await asyncio.sleep(1)
    transport.disconnect()
    transport.reconnect(keep_ack_sets=keep_ack_sets)
    await consumer.negative_acknowledge(messages[0], delay=0.1)
    again = await receive_all(consumer)
    assert payloads(again) == [b"0"]
    await consumer.acknowledge([again[0], messages[2]])
    await close_without_backlog(transport, consumer)
    assert plans(transport)[1].partial[0][3] == 0b0101, "the set is told again"


async def test_an_ack_lost_with_its_connection_is_sent_again(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    """The broker never processed the ack. The redelivered messages are not delivered again."""
    consumer, messages = await receive_numbers(transport, subscribe, 3)
    transport.faults = FaultPlan([Fault(kind="close_before", command="ACK")])
    await consumer.acknowledge(messages)
    assert await receive_all(consumer, quiet_s=60) == []
    assert transport.backlog(TOPIC, "s") == 0
    assert [len(plan.entries) for plan in plans(transport)] == [3, 3]


async def test_messages_queued_at_a_disconnect_are_delivered_once(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    numbers = put_numbers(transport, 20, batch=5)
    consumer = await subscribe()
    first = await receive_n(consumer, 7)
    transport.disconnect()
    await asyncio.sleep(1)
    transport.reconnect()
    rest = await receive_all(consumer)
    assert counted(first + rest) == dict.fromkeys(numbers, 1)


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.Exclusive])
async def test_a_nack_keeps_its_due_time_through_a_reconnect(
    transport: MemoryTransport, subscribe: Subscribe, kind: ConsumerType
) -> None:
    consumer, (held, nacked) = await receive_numbers(transport, subscribe, 2, consumer_type=kind)
    await consumer.negative_acknowledge(nacked, delay=5)
    transport.disconnect()
    transport.reconnect()
    again = await receive_all(consumer, quiet_s=10)
    # On Exclusive the nack becomes a rewind, which also redelivers the held message.
    expected = [b"1"] if kind is ConsumerType.Shared else [b"0", b"1"]
    assert [message.data() for message in again] == expected
    assert 5 <= now_s() - 10 <= 5.3
    await consumer.acknowledge([held, *again])
    await close_without_backlog(transport, consumer)


async def test_nacks_that_come_due_while_disconnected_are_redelivered_once(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    numbers = put_numbers(transport, 4, batch=2)
    consumer = await subscribe()
    for message in await receive_n(consumer, 4):
        await consumer.negative_acknowledge(message, delay=1)
    transport.disconnect()
    await asyncio.sleep(5)
    transport.reconnect()
    assert counted(await receive_all(consumer)) == dict.fromkeys(numbers, 1)


@pytest.mark.parametrize("nth", range(1, 5))
@pytest.mark.parametrize("command", ["ACK", "MESSAGE", "FLOW", "REDELIVER_UNACKNOWLEDGED_MESSAGES"])
@pytest.mark.parametrize("kind", ["close_before", "close_after", "outage", "delay", "duplicate"])
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "exclusive"])
async def test_no_message_is_lost_or_delivered_after_its_ack_whatever_command_fails(
    transport: MemoryTransport,
    subscribe: Subscribe,
    command: str,
    kind: Any,
    nth: int,
    shared: bool,
) -> None:
    """Every message is settled in the end, and none is handed out after its ack was made."""
    if (command, kind, shared) == ("ACK", "delay", False):
        return  # a rewind that overtakes an ack on one connection is not a thing that happens
    transport.faults = FaultPlan(
        [Fault(kind=kind, command=command, nth=nth, delay_ms=40, outage_s=2)]
    )
    numbers = put_numbers(transport, 30, batch=3)
    consumer = await subscribe(
        consumer_type=ConsumerType.Shared if shared else ConsumerType.Exclusive,
        receiver_queue_size=8,
        ack_group_time_ms=10,
    )
    acked: set[bytes] = set()
    seen: set[bytes] = set()
    deliveries = 0
    while len(acked) < len(numbers):
        message: Message = await consumer.receive(timeout=30)
        deliveries += 1
        assert message.data() not in acked, "handed out after its ack"
        if message.data() not in seen and int(message.data()) % 4 == 0:
            await consumer.negative_acknowledge(message, delay=0.03)
        else:
            await consumer.acknowledge(message)
            acked.add(message.data())
        seen.add(message.data())
        if deliveries % 5 == 0:
            await asyncio.sleep(0.02)
    assert await receive_all(consumer, quiet_s=10) == []
    await close_without_backlog(transport, consumer)


async def test_a_seek_long_after_the_ack_redelivers_acked_messages(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 2)
    consumer = await subscribe()
    await consumer.acknowledge(await receive_n(consumer, 2))
    await asyncio.sleep(60)
    await consumer.seek(MessageId.earliest)
    assert payloads(await receive_all(consumer)) == [b"0", b"1"]


async def test_a_seek_redelivers_acked_and_nacked_messages_once(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer, messages = await receive_numbers(transport, subscribe, 6, batch=3)
    await consumer.acknowledge(messages[0])
    await consumer.negative_acknowledge(messages[1], delay=1)
    await consumer.seek(MessageId.earliest)
    await consumer.acknowledge(messages[2])  # from before: void, or its own message at most
    again = await receive_all(consumer, quiet_s=10)
    assert set(payloads(again)) >= {b"0", b"1", b"3", b"4", b"5"}
    assert max(counted(again).values()) == 1


# Cumulative


async def test_a_cumulative_ack_at_the_end_of_a_batch_acks_whole_entries(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer, messages = await receive_numbers(
        transport, subscribe, 9, batch=3, consumer_type=ConsumerType.Exclusive
    )
    await consumer.acknowledge_cumulative(messages[5])
    await consumer.close()
    (plan,) = plans(transport)
    assert plan.cumulative == (messages[5].message_id().ledger_id(), 1, 3, -1)
    assert transport.backlog(TOPIC, "s") == 1


async def test_a_cumulative_ack_inside_a_batch_adds_an_ack_set(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer, messages = await receive_numbers(
        transport, subscribe, 8, batch=4, consumer_type=ConsumerType.Exclusive
    )
    await consumer.acknowledge_cumulative(messages[5])
    await asyncio.sleep(1)
    whole, part = plans(transport)
    ledger = messages[5].message_id().ledger_id()
    assert whole.cumulative == (ledger, 0, 4, -1)
    assert (part.entries, part.partial) == ([], [(ledger, 1, 4, 0b1100)])
    consumer.redeliver_unacknowledged_messages()
    rest = await receive_all(consumer)
    assert payloads(rest) == [b"6", b"7"]
    await consumer.acknowledge_cumulative(rest[-1])
    await close_without_backlog(transport, consumer)


async def test_a_cumulative_ack_only_moves_forward(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer, messages = await receive_numbers(
        transport, subscribe, 5, consumer_type=ConsumerType.Failover
    )
    await consumer.acknowledge_cumulative(messages[3])
    await consumer.acknowledge_cumulative(messages[1])
    await asyncio.sleep(1)
    (plan,) = plans(transport)
    assert plan.cumulative is not None and plan.cumulative[1] == 3
    assert consumer.statistics().in_flight == 1


async def test_a_cumulative_ack_made_while_disconnected_is_sent_after_the_reconnect(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer, messages = await receive_numbers(
        transport, subscribe, 6, batch=2, consumer_type=ConsumerType.Exclusive
    )
    transport.disconnect()
    await consumer.acknowledge_cumulative(messages[2])
    await asyncio.sleep(5)
    transport.reconnect()
    assert await receive_all(consumer) == []
    consumer.redeliver_unacknowledged_messages()
    assert payloads(await receive_all(consumer)) == [b"3", b"4", b"5"]


async def test_a_cumulative_ack_cancels_nacks_and_ack_timeouts_below_it(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer, messages = await receive_numbers(
        transport,
        subscribe,
        4,
        consumer_type=ConsumerType.Exclusive,
        unacked_messages_timeout_ms=2000,
    )
    await consumer.negative_acknowledge(messages[0], delay=1)
    await consumer.acknowledge_cumulative(messages[3].message_id())
    with pytest.raises(ReceiveTimeout):
        await consumer.receive(timeout=20)
    assert consumer.statistics().unacked == 0


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])
async def test_a_cumulative_ack_is_refused_on_shared_and_key_shared(
    transport: MemoryTransport, subscribe: Subscribe, kind: ConsumerType
) -> None:
    put_numbers(transport, 1)
    consumer = await subscribe(consumer_type=kind)
    with pytest.raises(ConfigurationError, match=kind.name):
        await consumer.acknowledge_cumulative(await consumer.receive())


# Whose message is it?


async def test_a_deserialized_id_acks_its_own_message_and_no_sibling(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer, messages = await receive_numbers(transport, subscribe, 3, batch=3)
    data = messages[1].message_id().serialize()
    await consumer.acknowledge(MessageId.deserialize(data))
    await asyncio.sleep(1)
    assert plans(transport)[0].partial[0][3] == 0b101
    consumer.redeliver_unacknowledged_messages()
    assert payloads(await receive_all(consumer)) == [b"0", b"2"]


async def test_an_id_of_a_batch_not_received_yet_acks_only_its_index(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    ids = transport.put(TOPIC, b"0", b"1", b"2")
    consumer = await subscribe(consumer_type=ConsumerType.Shared)
    await consumer.acknowledge(MessageId.deserialize(ids[1].serialize(), TOPIC))
    await asyncio.sleep(1)
    assert plans(transport)[0].partial[0][2:] == (3, 0b101)
    assert payloads(await receive_all(consumer)) == [b"0", b"2"]


@pytest.mark.parametrize("index", [3, 7])
async def test_settling_a_batch_index_that_does_not_exist_is_refused(
    transport: MemoryTransport, subscribe: Subscribe, index: int
) -> None:
    put_numbers(transport, 3, batch=3)
    consumer = await subscribe()
    own = (await receive_n(consumer, 3))[0].message_id()
    wrong = MessageId(-1, own.ledger_id(), own.entry_id(), index, batch_size=3, topic=TOPIC)
    for call in (consumer.acknowledge, consumer.negative_acknowledge):
        with pytest.raises(ConfigurationError, match="index"):
            await call(wrong)
    assert consumer.statistics().in_flight == 3


async def test_settling_another_consumers_message_is_refused_and_its_id_can_be_acked(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 1)
    one = await subscribe()
    message = await one.receive()
    other = await subscribe()
    with pytest.raises(MessageNotHeldError, match="another consumer"):
        await other.acknowledge(message)
    with pytest.raises(MessageNotHeldError, match="another consumer"):
        await other.negative_acknowledge(message)
    await other.acknowledge(message.message_id())
    await other.close()
    assert transport.backlog(TOPIC, "s") == 0


@pytest.mark.parametrize("item", [None, 7, "id", b"bytes", object()])
async def test_settling_an_object_that_is_no_message_is_refused(
    subscribe: Subscribe, item: object
) -> None:
    consumer = await subscribe()
    for call in (consumer.acknowledge, consumer.negative_acknowledge):
        with pytest.raises(ConfigurationError, match="MessageId"):
            await call(item)


@pytest.mark.parametrize("position", [MessageId.earliest])
async def test_settling_a_position_is_refused(subscribe: Subscribe, position: MessageId) -> None:
    consumer = await subscribe()
    for call in (consumer.acknowledge, consumer.negative_acknowledge):
        with pytest.raises(ConfigurationError):
            await call(position)


async def test_an_id_without_its_topic_is_refused_by_a_consumer_of_several_topics(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    transport.put(TOPIC, b"a")
    transport.put(TOPIC + "2", b"b")
    consumer = await subscribe(TOPIC, TOPIC + "2")
    messages = await receive_n(consumer, 2)
    bare = MessageId.deserialize(messages[0].message_id().serialize())
    with pytest.raises(MessageNotHeldError, match="topic"):
        await consumer.acknowledge(bare)
    with pytest.raises(MessageNotHeldError, match="topic"):
        await consumer.acknowledge(bare.with_topic("persistent://public/default/elsewhere"))
    await consumer.acknowledge(bare.with_topic(messages[0].topic_name()))
    await consumer.acknowledge(messages[1].message_id())
    await consumer.close()
    assert transport.backlog(TOPIC, "s") == transport.backlog(TOPIC + "2", "s") == 0


async def test_deserialized_ids_ack_messages_of_their_own_partition(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    transport.catalogue.create_partitioned(TOPIC, 3)
    for partition in range(3):
        transport.put(f"{TOPIC}-partition-{partition}", b"%d" % partition, b"x")
    consumer = await subscribe()
    messages = await receive_n(consumer, 6)
    for message in messages:
        copied = MessageId.deserialize(message.message_id().serialize())
        assert copied.partition() == message.message_id().partition() >= 0
        await consumer.acknowledge(copied)
    await consumer.close()
    for partition in range(3):
        assert transport.backlog(f"{TOPIC}-partition-{partition}", "s") == 0


# Acks that could be late, lost or too wide


async def test_a_cumulative_ack_by_an_id_without_its_batch_size_is_refused(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    """Four stored integers do not say whether index 0 is the last."""
    ids = transport.put(TOPIC, b"0", b"1", b"2")
    consumer = await subscribe(consumer_type=ConsumerType.Exclusive)
    rebuilt = MessageId(-1, ids[0].ledger_id(), ids[0].entry_id(), 0, topic=TOPIC)
    with pytest.raises(MessageNotHeldError, match="size"):
        await consumer.acknowledge_cumulative(rebuilt)
    await consumer.close()
    assert transport.backlog(TOPIC, "s") == 1


@pytest.mark.parametrize("away_s", [0.3, 5])
async def test_an_outage_at_the_end_of_the_previous_duplicate_window_delivers_no_duplicate(
    transport: MemoryTransport, subscribe: Subscribe, away_s: float
) -> None:
    """The duplicate window of the first outage ends during the second, which needs its own."""
    consumer = await subscribe()
    await asyncio.sleep(1)
    transport.disconnect()
    transport.reconnect()
    await asyncio.sleep(29)
    transport.put(TOPIC, b"m")
    transport.faults = FaultPlan([Fault(kind="drop", command="ACK")])
    await consumer.acknowledge(await consumer.receive())
    await asyncio.sleep(0.2)
    transport.disconnect()
    await asyncio.sleep(away_s)
    transport.reconnect()
    assert await receive_all(consumer, quiet_s=5) == []
    assert transport.backlog(TOPIC, "s") == 0


async def test_acked_batch_messages_are_not_redelivered_with_a_sibling(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    """The nack delay is shorter than the ack group time. The acks are sent before the entry is
    requested; otherwise another consumer would receive the whole batch."""
    consumer, (first, failed, last) = await receive_numbers(
        transport, subscribe, 3, batch=3, ack_group_time_ms=1000
    )
    await consumer.acknowledge([first, last])
    await consumer.negative_acknowledge(failed, delay=0.5)
    await subscribe()
    await asyncio.sleep(0.8)
    names = [command.name for command in transport.commands if command.name in ("ACK", REDELIVER)]
    assert names == ["ACK", REDELIVER]


async def test_a_topic_first_seen_after_a_reconnect_delivers_no_duplicate(
    transport: MemoryTransport, subscribe: Subscribe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first message waited in the engine since before the connection was lost, and the
    broker's second copy behind it."""
    delivered: list[Delivery] = []
    hand_on = DeliveryHandler.on_deliveries

    def on_deliveries(self: DeliveryHandler, deliveries: Deliveries) -> None:
        delivered.extend(copy(each) for each in each_delivery(deliveries))
        hand_on(self, deliveries)

    monkeypatch.setattr(DeliveryHandler, "on_deliveries", on_deliveries)
    consumer = await subscribe()
    parts_of(consumer).delivery_handler.on_uncertain()  # one of several topics was away
    parts_of(consumer).delivery_handler.on_connected()
    put_numbers(transport, 1)
    await consumer.acknowledge(await consumer.receive())
    await asyncio.sleep(1)
    parts_of(consumer).delivery_handler.on_deliveries([copy(delivered[0])])
    assert await receive_all(consumer) == []


async def test_acks_made_while_disconnected_are_sent_in_parts_of_at_most_1000_entries(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    """So that no one turn of the loop sends them all."""
    count = 3500
    consumer, messages = await receive_numbers(
        transport, subscribe, count, receiver_queue_size=count, max_unacked_messages=4 * count
    )
    transport.disconnect()
    await consumer.acknowledge(messages)
    transport.reconnect()
    await asyncio.sleep(1)
    sizes = [len(plan.entries) for plan in plans(transport)]
    assert sum(sizes) >= count and max(sizes) <= 1000
    assert transport.backlog(TOPIC, "s") == 0


async def test_the_acks_of_every_topic_are_sent_after_a_reconnect(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    """Also where those of the first are just as many as one turn of the loop sends."""
    topics = [f"{TOPIC}-{number}" for number in range(3)]
    consumer = await subscribe(*topics, receiver_queue_size=4000, ack_group_max_size=10_000)
    for topic in topics:
        for number in range(1000):
            transport.put(topic, b"%d" % number)
    messages = await receive_n(consumer, 3000)
    transport.disconnect()
    await consumer.acknowledge(messages)
    transport.reconnect()
    await asyncio.sleep(0.05)
    assert [transport.backlog(topic, "s") for topic in topics] == [0, 0, 0]


async def test_acks_of_a_topic_that_could_not_be_sent_are_retried_beside_a_busy_topic() -> None:
    """However often the other one sends."""
    loop = asyncio.get_running_loop()
    able, sent = {0: True, 1: False}, {0: 0, 1: 0}

    def ack(plan: AckPlan) -> None:
        sent[plan.topic_number] += len(plan.entries)

    transport_consumer: Any = SimpleNamespace(
        can_ack=able.__getitem__,
        ack=ack,
        capabilities=Capabilities(name="model"),
        topic_of=lambda topic_number: (f"{TOPIC}{topic_number}", -1),
    )
    options = ConsumerOptions(topics=(TOPIC,), pattern=None, subscription_name="s")
    queue: Any = []
    topic_states = TopicStates(transport_consumer, options, loop)
    sender = AckSender(transport_consumer, topic_states, options, loop, queue)

    def one(topic_number: int, number: int) -> None:
        state = topic_states.by_number[topic_number]
        entry, _ = state.arrive((1, number), 0, 0, (0,))
        assert entry is not None
        sender.added(state, state.ack(entry, 0))

    one(1, 0)
    await asyncio.sleep(0.15)
    able[1] = True
    for number in range(10_000):
        one(0, number)
        if number % 100 == 99:
            await asyncio.sleep(0.01)
    assert sent[1] == 1
    sender.close(ClosedError())
