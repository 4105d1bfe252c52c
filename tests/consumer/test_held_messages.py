"""Release, failures in place and detached leases of messages that the application holds."""

from __future__ import annotations

import asyncio
import tracemalloc
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from consumer_kit import (
    REDELIVER,
    TOPIC,
    Subscribe,
    close_without_backlog,
    now_s,
    payloads,
    put_numbers,
    receive_all,
    receive_n,
    receive_numbers,
    settle,
)
from durable_kit import Host

from pulsar_encore import (
    Client,
    ConfigurationError,
    ConsumerType,
    Counters,
    DeadLetterPolicy,
    InitialPosition,
    Lease,
    LeaseLostError,
    MessageId,
    MessageNotHeldError,
    NotSupportedError,
    RocksState,
)
from pulsar_encore.message import set_handler_context
from pulsar_encore.testing import MemoryTransport

ALL_TYPES = pytest.mark.parametrize("kind", list(ConsumerType))
BATCHES = pytest.mark.parametrize("batch", [1, 5])
UNSHARED = (ConsumerType.Exclusive, ConsumerType.Failover)


# Release


@ALL_TYPES
@BATCHES
async def test_a_released_message_is_received_first_again_and_is_not_an_attempt(
    transport: MemoryTransport, subscribe: Subscribe, kind: ConsumerType, batch: int
) -> None:
    put_numbers(transport, 20, batch=batch)
    consumer = await subscribe(consumer_type=kind)
    messages = await receive_n(consumer, 7)
    await messages[0].ack()
    consumer.release(messages[1])
    assert not consumer.holds(messages[1])
    again = await consumer.receive(timeout=1)
    assert (again.data(), again.redelivery_count(), again.attempt) == (b"1", 0, 1)
    for message in reversed(messages[2:]):
        consumer.release(message)
    rest = await receive_all(consumer)
    assert payloads(rest) == [b"%d" % each for each in range(2, 20)]
    assert {each.attempt for each in rest} == {1}
    assert consumer.statistics().in_flight == 19
    for message in (again, *rest):
        await message.ack()
    assert transport.recorded(REDELIVER) == []
    await close_without_backlog(transport, consumer)


@ALL_TYPES
async def test_messages_released_in_parts_keep_their_order(
    transport: MemoryTransport, subscribe: Subscribe, kind: ConsumerType
) -> None:
    put_numbers(transport, 30, batch=3)
    consumer = await subscribe(consumer_type=kind)
    messages = await receive_n(consumer, 11)
    for message in (messages[9], messages[4], messages[6]):
        consumer.release(message)
    first = await consumer.receive(timeout=1)
    assert first.data() == b"4"
    consumer.release(messages[5])
    consumer.release(messages[10])
    consumer.release(first)
    assert payloads(await receive_n(consumer, 6)) == [b"4", b"5", b"6", b"9", b"10", b"11"]


async def test_a_release_wakes_a_waiting_receive(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer, (message,) = await receive_numbers(transport, subscribe, 1)
    waiting = asyncio.create_task(consumer.receive(timeout=10))
    await asyncio.sleep(1)
    consumer.release(message)
    assert (await waiting).data() == b"0"
    assert now_s() < 2


async def test_released_messages_are_taken_by_batch_receive_and_pop(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer, messages = await receive_numbers(transport, subscribe, 6, batch=2)
    for message in messages[:4]:
        consumer.release(message)
    assert payloads(await consumer.batch_receive()) == [b"0", b"1", b"2", b"3"]
    consumer.release(messages[4])
    consumer.release(messages[5])
    leases = await consumer.pop(5, topic=TOPIC)
    assert payloads([each.message for each in leases]) == [b"4", b"5"]


@ALL_TYPES
async def test_a_released_message_survives_a_reconnect(
    transport: MemoryTransport, subscribe: Subscribe, kind: ConsumerType
) -> None:
    consumer, messages = await receive_numbers(transport, subscribe, 5, consumer_type=kind)
    consumer.release(messages[1])
    transport.disconnect()
    await settle()
    transport.reconnect()
    again = await receive_all(consumer, 3)
    assert payloads(again) == [b"1"]
    await consumer.acknowledge([*again, messages[0], *messages[2:]])
    await close_without_backlog(transport, consumer)


async def test_release_of_a_message_that_is_not_held_does_nothing(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer, (acked, nacked, released) = await receive_numbers(transport, subscribe, 3)
    await acked.ack()
    await nacked.nack(5)
    consumer.release(released)
    for message in (acked, nacked, released):
        consumer.release(message)
        assert not consumer.holds(message)
    assert payloads(await receive_all(consumer)) == [b"2"]


async def test_messages_that_are_released_again_and_again_take_no_more_memory(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer, messages = await receive_numbers(transport, subscribe, 2)
    for message in messages:
        consumer.release(message)

    async def take_and_release(times: int) -> None:
        for _ in range(times):
            consumer.release(await consumer.receive())

    await take_and_release(100)
    tracemalloc.start()
    try:
        await take_and_release(2000)
        assert tracemalloc.get_traced_memory()[0] < 50_000
    finally:
        tracemalloc.stop()
    assert payloads(await receive_all(consumer)) == [b"0", b"1"]


async def test_the_ack_timeout_of_a_released_message_ends(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer, (message,) = await receive_numbers(
        transport, subscribe, 1, unacked_messages_timeout_ms=1000
    )
    consumer.release(message)
    await asyncio.sleep(5)
    assert transport.recorded(REDELIVER) == []
    assert (await consumer.receive(timeout=1)).attempt == 1


@ALL_TYPES
@BATCHES
async def test_a_release_costs_no_attempt_after_a_restart_with_state(
    transport: MemoryTransport, host: Host, kind: ConsumerType, batch: int
) -> None:
    put_numbers(transport, 5, batch=batch)
    policy = DeadLetterPolicy(3)
    for _ in range(4):
        consumer = await host.start(consumer_type=kind, dead_letter_policy=policy)
        messages = await receive_n(consumer, 5)
        assert [each.attempt for each in messages] == [1] * 5
        for message in messages:
            consumer.release(message)
        await host.stop()
    consumer = await host.start(consumer_type=kind, dead_letter_policy=policy)
    assert len(await receive_n(consumer, 5)) == 5


# Failures in place


@ALL_TYPES
@BATCHES
async def test_a_failure_in_place_counts_and_moves_no_other_message(
    transport: MemoryTransport, subscribe: Subscribe, kind: ConsumerType, batch: int
) -> None:
    put_numbers(transport, 10, batch=batch)
    consumer = await subscribe(consumer_type=kind)
    messages = await receive_n(consumer, 6)
    message = messages[2]
    for attempt in (2, 3, 4):
        before, message = message, consumer.fail_in_place(message, error=ValueError("no"))
        assert not consumer.holds(before) and consumer.holds(message)
        assert (message.data(), message.attempt) == (b"2", attempt)
        with pytest.raises(MessageNotHeldError):
            consumer.fail_in_place(before)
    rest = await receive_all(consumer)
    assert payloads(rest) == [b"6", b"7", b"8", b"9"]
    assert {each.attempt for each in rest} == {1}
    assert transport.recorded(REDELIVER) == []
    consumer.release(message)
    (again,) = await receive_all(consumer)
    assert (again.data(), again.attempt) == (b"2", 4)
    await consumer.acknowledge([*messages[:2], *messages[3:], again, *rest])
    await close_without_backlog(transport, consumer)


@ALL_TYPES
@BATCHES
async def test_failures_in_place_survive_a_reconnect(
    transport: MemoryTransport, subscribe: Subscribe, kind: ConsumerType, batch: int
) -> None:
    put_numbers(transport, 5, batch=batch)
    consumer = await subscribe(consumer_type=kind)
    messages = await receive_n(consumer, 5)
    held = consumer.fail_in_place(consumer.fail_in_place(messages[3]))
    transport.disconnect()
    await settle()
    transport.reconnect()
    assert await receive_all(consumer, 3) == []
    assert consumer.holds(held)
    held = consumer.fail_in_place(held)
    assert held.attempt == 4
    consumer.release(held)
    transport.disconnect()
    await settle()
    transport.reconnect()
    (again,) = await receive_all(consumer, 3)
    assert (again.data(), again.attempt) == (b"3", 4)
    await consumer.acknowledge([*messages[:3], again, messages[4]])
    await close_without_backlog(transport, consumer)


@ALL_TYPES
@BATCHES
async def test_failures_in_place_survive_a_kill_with_state(
    transport: MemoryTransport, host: Host, kind: ConsumerType, batch: int
) -> None:
    put_numbers(transport, 5, batch=batch)
    consumer = await host.start(consumer_type=kind)
    messages = await receive_n(consumer, 5)
    held = consumer.fail_in_place(consumer.fail_in_place(messages[1], error="first"))
    assert held.attempt == 3
    await host.kill()
    consumer = await host.start(consumer_type=kind)
    again = await receive_n(consumer, 5)
    assert [each.attempt for each in again] == [1, 3, 1, 1, 1]
    held = consumer.fail_in_place(again[1])
    consumer.begin_attempt(held)
    await host.kill()
    consumer = await host.start(consumer_type=kind)
    assert [each.attempt for each in await receive_n(consumer, 5)] == [1, 5, 1, 1, 1]


@BATCHES
@pytest.mark.parametrize("stop", [True, False])
async def test_only_attempts_that_have_begun_count_after_a_restart_if_they_are_explicit(
    transport: MemoryTransport, host: Host, batch: int, stop: bool
) -> None:
    put_numbers(transport, 5, batch=batch)
    options = {"state": {"count_attempts": "explicit"}, "dead_letter_policy": DeadLetterPolicy(9)}
    consumer = await host.start(**options)
    messages = await receive_n(consumer, 5)
    consumer.begin_attempt(messages[1])
    consumer.begin_attempt(consumer.fail_in_place(messages[2]))
    consumer.begin_attempt(messages[3])
    consumer.release(messages[3])
    await asyncio.sleep(60)
    await (host.stop() if stop else host.kill())
    consumer = await host.start(**options)
    assert [each.attempt for each in await receive_n(consumer, 5)] == [1, 2, 3, 1, 1]


async def test_a_nack_after_failures_in_place_counts_on(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer, (message,) = await receive_numbers(transport, subscribe, 1)
    held = consumer.fail_in_place(consumer.fail_in_place(message))
    await held.nack(1)
    again = await consumer.receive(timeout=5)
    assert again.attempt == 4
    await again.ack()
    await close_without_backlog(transport, consumer)


async def test_the_ack_timeout_begins_again_after_a_failure_in_place(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer, (message,) = await receive_numbers(
        transport, subscribe, 1, unacked_messages_timeout_ms=10_000
    )
    await asyncio.sleep(8)
    held = consumer.fail_in_place(message)
    await asyncio.sleep(8)
    assert consumer.holds(held)
    await held.extend(30)
    await asyncio.sleep(25)
    assert consumer.holds(held)
    await asyncio.sleep(6)
    assert not consumer.holds(held)
    assert (await consumer.receive(timeout=1)).attempt == 3


# Detach


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])
async def test_a_detached_message_is_settled_by_its_handle(
    transport: MemoryTransport, subscribe: Subscribe, kind: ConsumerType
) -> None:
    consumer, (first, second) = await receive_numbers(transport, subscribe, 2, consumer_type=kind)
    handle = consumer.detach(first, 60).handle
    expiring = consumer.detach(second, 60)
    assert expiring.attempt == 1
    await (await consumer.lease(handle)).ack()
    again = await consumer.receive(timeout=100)
    assert (again.data(), again.attempt) == (b"1", 2)
    assert now_s() >= 60
    assert consumer.counters().leases_lost == 1
    await again.ack()
    await close_without_backlog(transport, consumer)


@pytest.mark.parametrize("kind", UNSHARED)
async def test_detach_needs_a_shared_subscription(
    transport: MemoryTransport, subscribe: Subscribe, kind: ConsumerType
) -> None:
    consumer, (message,) = await receive_numbers(transport, subscribe, 1, consumer_type=kind)
    with pytest.raises(ConfigurationError, match="Shared or Key_Shared"):
        consumer.detach(message)


async def test_detach_needs_a_free_lease(transport: MemoryTransport, subscribe: Subscribe) -> None:
    consumer, (first, second) = await receive_numbers(transport, subscribe, 2, max_leases=1)
    consumer.detach(first)
    with pytest.raises(ConfigurationError, match="max_leases"):
        consumer.detach(second)
    assert consumer.holds(second)


# Flush


async def test_flush_waits_for_the_brokers_receipts(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer, messages = await receive_numbers(
        transport, subscribe, 10, batch=5, ack_group_time_ms=60_000
    )
    await consumer.acknowledge(messages[:7])
    assert transport.backlog(TOPIC, "s") == 2  # entries
    await consumer.flush()
    assert transport.backlog(TOPIC, "s") == 1
    await consumer.flush()
    await consumer.acknowledge(messages[7:])
    transport.disconnect()
    await settle()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(consumer.flush(), 1)
    transport.reconnect()
    await consumer.flush()
    assert transport.backlog(TOPIC, "s") == 0


# Verbs of a message


async def test_a_message_is_settled_by_its_own_methods(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer, (first, second, third) = await receive_numbers(transport, subscribe, 3)
    await first.ack()
    second.nack(2)  # takes effect when it is called
    third.ack()
    again = await consumer.receive(timeout=10)
    assert (again.data(), again.attempt, now_s() >= 2) == (b"1", 2, True)
    await again.ack()
    await close_without_backlog(transport, consumer)
    counters = consumer.counters()
    assert (counters.received, counters.acked, counters.nacked) == (4, 3, 1)
    assert (counters.redelivered, counters.reconnects) == (1, 0)


TIMEOUT = {"unacked_messages_timeout_ms": 60_000}
UNCOUNTED: list[dict[str, Any]] = [{}, TIMEOUT]
COUNTED: list[dict[str, Any]] = [
    {"dead_letter_policy": DeadLetterPolicy(9)},
    {"negative_ack_redelivery_backoff": [1]},
    {"ack_timeout_redelivery_backoff": [1], **TIMEOUT},
    {"state": "a directory"},
]


@ALL_TYPES
@pytest.mark.parametrize("options", UNCOUNTED + COUNTED, ids=lambda given: "-".join(given))
async def test_without_policy_backoff_and_state_a_nack_counts_on_shared_and_key_shared_only(
    transport: MemoryTransport,
    client: Client,
    tmp_path: Path,
    kind: ConsumerType,
    options: dict[str, Any],
) -> None:
    counts = options in COUNTED or kind not in UNSHARED
    if "state" in options:
        options = {"state": RocksState(tmp_path)}
    consumer = await client.subscribe(TOPIC, "s", kind, **options)
    transport.put(TOPIC, b"1")
    for number in (1, 2, 3):
        message = await consumer.receive(timeout=100)
        assert message.attempt == (number if counts else 1)
        assert message.redelivery_count() == message.attempt - 1
        await message.nack()


async def test_key_and_publish_time_of_a_message(
    transport: MemoryTransport, client: Client
) -> None:
    async with await client.create_producer(TOPIC) as producer:
        await producer.send(b"1", partition_key="a")
        await producer.send(b"2")
    consumer = await client.subscribe(TOPIC, "s", initial_position=InitialPosition.Earliest)
    with_key, without = await receive_n(consumer, 2)
    assert (with_key.key, without.key) == ("a", None)
    assert with_key.published_at.tzinfo is UTC
    published = datetime.fromtimestamp(with_key.publish_timestamp() / 1000, UTC)
    assert abs((with_key.published_at - published).total_seconds()) < 0.001


async def test_a_readers_message_has_nothing_to_settle(
    transport: MemoryTransport, client: Client
) -> None:
    put_numbers(transport, 1)
    reader = await client.create_reader(TOPIC, MessageId.earliest)
    message = await reader.read_next()
    assert message.attempt == 1
    for call in (message.ack, message.nack, lambda: message.extend(1)):
        with pytest.raises(NotSupportedError, match=r"Client\.subscribe"):
            await call()
    with pytest.raises(NotSupportedError, match=r"Client\.subscribe"):
        await message.reject("no")


async def test_what_a_worker_serves_names_the_way_out_elsewhere(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    _, (message,) = await receive_numbers(transport, subscribe, 1)
    with pytest.raises(ConfigurationError, match=r"Consumer\.detach"):
        message.detach()
    with pytest.raises(ConfigurationError, match="create_producer"):
        message.publish(b"1")
    with pytest.raises(ConfigurationError, match="signal"):
        _ = message.stopping


class Call:
    """The call of a worker's handler, as the worker gives it to its message."""

    consumer = None

    def __init__(self) -> None:
        self.stopping = asyncio.Event()
        self.calls: list[object] = []

    def extend(self, seconds: float | timedelta) -> None:
        self.calls.append(("extend", seconds))

    def detach(self, lease: float | timedelta) -> Lease:
        raise LeaseLostError(f"of {lease} s")

    def publish(self, value: Any, **where: Any) -> None:
        self.calls.append(("publish", value, where))


async def test_in_a_worker_the_handlers_call_serves_its_message(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    _, (message,) = await receive_numbers(transport, subscribe, 1)
    call = Call()
    set_handler_context(message, call)
    assert message.stopping is call.stopping
    await message.extend(60)
    message.publish(b"1", "other", key="a")
    where = {"topic": "other", "key": "a", "properties": None}
    assert call.calls == [("extend", 60), ("publish", b"1", where)]
    with pytest.raises(LeaseLostError, match="3600"):
        message.detach()
    with pytest.raises(ConfigurationError, match="seconds"):
        await message.extend(-1)
    await message.ack()
    with pytest.raises(MessageNotHeldError):
        await message.extend(60)
    set_handler_context(message, None)
    with pytest.raises(ConfigurationError, match="Worker"):
        message.publish(b"2")


# Counters


async def test_counters_count_events_from_the_start(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 12, batch=4)
    consumer = await subscribe()
    assert consumer.counters() == Counters()
    messages = await receive_n(consumer, 12)
    await consumer.acknowledge(messages[0])
    await consumer.acknowledge(messages[0])
    await consumer.acknowledge(messages[1:6])
    await messages[6].nack(1)
    again = await consumer.receive(timeout=10)
    await consumer.acknowledge(again.message_id())
    transport.disconnect()
    await settle()
    transport.reconnect()
    await settle()
    consumer.redeliver_unacknowledged_messages()
    rest = await receive_all(consumer)
    assert len(rest) == 5
    assert consumer.counters() == Counters(
        received=12 + 1 + 5, acked=7, nacked=1, redelivered=1 + 5, reconnects=1
    )
    await consumer.acknowledge(rest)
    assert consumer.counters().acked == 12
    await close_without_backlog(transport, consumer)


@pytest.mark.parametrize("kind", UNSHARED)
async def test_a_cumulative_ack_counts_each_message(
    transport: MemoryTransport, subscribe: Subscribe, kind: ConsumerType
) -> None:
    consumer, messages = await receive_numbers(
        transport, subscribe, 20, batch=4, consumer_type=kind
    )
    await consumer.acknowledge(messages[3])
    await consumer.acknowledge_cumulative(messages[9])
    assert consumer.counters().acked == 10
    assert consumer.statistics().unacked == 10
    await consumer.acknowledge_cumulative(messages[19])
    assert consumer.counters().acked == 20
    assert consumer.statistics().unacked == 0


async def test_a_topic_is_redelivered_even_before_its_first_message(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    """A Failover consumer that becomes inactive may not have received any message."""
    consumer = await subscribe(consumer_type=ConsumerType.Failover)
    consumer.redeliver_topic(TOPIC)
    put_numbers(transport, 3)
    messages = await receive_n(consumer, 2)
    consumer.redeliver_topic(TOPIC)
    assert not consumer.holds(messages[0])
    again = await receive_all(consumer)
    assert [(each.data(), each.attempt) for each in again] == [(b"0", 1), (b"1", 1), (b"2", 1)]
    with pytest.raises(ConfigurationError, match="does not read"):
        consumer.redeliver_topic("another")
