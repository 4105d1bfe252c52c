"""A state directory that meets another cluster, and a clock that jumps while a consumer works."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from consumer_kit import TOPIC, parts_of, put_numbers, receive_all
from durable_kit import Host

from pulsar_encore import (
    ClosedError,
    Consumer,
    ConsumerType,
    DeadLetterPolicy,
    LeaseLostError,
    Message,
    MessageNotHeldError,
    RocksState,
    StateMismatchError,
)
from pulsar_encore.errors import ConfigurationError
from pulsar_encore.state.rocks import RocksStore
from pulsar_encore.testing import MemoryTransport

POLICY = DeadLetterPolicy(max_redeliver_count=2, dead_letter_topic="dead")
HOUR = 3600.0


@pytest.fixture
async def host(transport: MemoryTransport, tmp_path: Path) -> AsyncIterator[Host]:
    host = Host(transport, tmp_path / "state")
    yield host
    await host.stop()


async def wiped(host: Host) -> MemoryTransport:
    """Replace the cluster by a new one with the same ids; the state directory stays."""
    await host.stop()
    await asyncio.sleep(1)  # it publishes later
    host.transport = MemoryTransport()
    return host.transport


async def nack_all(host: Host, count: int, *, delay: float = HOUR, **options: Any) -> None:
    consumer = await host.start(**options)
    for _ in range(count):
        await consumer.negative_acknowledge(await consumer.receive(timeout=10), delay=delay)


def mismatched(consumer: Consumer) -> int:
    durability = parts_of(consumer).state_writer
    assert durability is not None and durability._store is not None
    return durability._store.statistics().mismatched


@pytest.mark.parametrize("answer", ["error", "fresh"])
@pytest.mark.parametrize("batch", [1, 5])
async def test_new_messages_inherit_no_attempts_or_due_times_from_old_ones_with_their_ids(
    host: Host, batch: int, answer: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No new message is dead-lettered or delayed by the records of an old message."""
    put_numbers(host.transport, 20, batch=batch)
    consumer = await host.start(dead_letter_policy=POLICY)
    for _ in range(20):  # as often as the policy allows
        await consumer.negative_acknowledge(await consumer.receive(timeout=10), delay=0.1)
    for _ in range(20):
        await consumer.negative_acknowledge(await consumer.receive(timeout=10), delay=HOUR)
    transport = await wiped(host)
    put_numbers(transport, 20, batch=batch)
    state = {"on_mismatch": answer}
    consumer = await host.start(dead_letter_policy=POLICY, state=state)
    delivered = await receive_all(consumer)
    assert sorted(int(each.data()) for each in delivered) == list(range(20))
    assert {each.redelivery_count() for each in delivered} == {0}
    assert mismatched(consumer) == 20 // batch
    assert caplog.text.count("has a record for the id of this message") == 1
    # Their attempts count from 1, in memory until the old records may be deleted.
    for each in delivered:
        await consumer.negative_acknowledge(each, delay=0.1)
    again = await receive_all(consumer)
    assert {each.redelivery_count() for each in again} == {1}
    await host.kill()
    consumer = await host.start(dead_letter_policy=POLICY)
    again = await receive_all(consumer)
    assert {each.redelivery_count() for each in again} == {0 if answer == "error" else 2}
    assert mismatched(consumer) == (20 // batch if answer == "error" else 0)


@pytest.mark.parametrize("count_attempts", ["before", "lazy"])
@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("ends", ["settled", "nacked", "killed"])
@pytest.mark.parametrize("count", [99, 150])
async def test_the_directory_still_serves_the_right_cluster_after_a_mismatch(
    host: Host, count: int, ends: str, batch: int, count_attempts: str
) -> None:
    """Settling messages of another cluster deletes or changes no record."""
    entries = count
    count *= batch
    state = {"count_attempts": count_attempts}
    right = host.transport
    put_numbers(right, count, batch=batch)
    # Longer than the steps before the last receive. With lazy counts, each second costs a sweep.
    delay = 120
    await nack_all(host, count, delay=delay, state=state)
    wrong = await wiped(host)
    put_numbers(wrong, count, batch=batch)
    consumer = await host.start(state=state)
    try:
        for at in range(count):
            message = await consumer.receive(timeout=1)
            if ends == "settled" or at % 2:
                await consumer.acknowledge(message)
            elif ends == "nacked":
                await consumer.negative_acknowledge(message, delay=0.1)
    except StateMismatchError:
        assert entries >= 100
    else:
        assert entries < 100
    await asyncio.sleep(20)
    if ends == "killed":
        await host.kill()
    await host.stop()
    host.transport = right
    right.reconnect()
    consumer = await host.start(state=state)
    assert await receive_all(consumer, 60) == []
    assert mismatched(consumer) == 0
    delivered = await receive_all(consumer, delay + 1)
    assert len(delivered) == count and {each.redelivery_count() for each in delivered} == {1}


@pytest.mark.parametrize("nacks", [False, True])
async def test_another_cluster_is_an_error_at_each_start(host: Host, nacks: bool) -> None:
    """The next start does not trust records that a start at the wrong cluster wrote."""
    options: dict[str, Any] = {"state": {"count_attempts": "before"}, "receiver_queue_size": 20}
    right = host.transport
    put_numbers(right, 200)
    consumer = await host.start()
    for at in range(200):
        message = await consumer.receive(timeout=10)
        if at < 50:
            await consumer.acknowledge(message)
        else:
            await consumer.negative_acknowledge(message, delay=HOUR)
    wrong = await wiped(host)
    put_numbers(wrong, 200)
    for _ in range(3):
        consumer = await host.start(**options)
        with pytest.raises(StateMismatchError):
            while True:
                message = await consumer.receive(timeout=10)
                if nacks:
                    await consumer.negative_acknowledge(message, delay=0.05)
        await host.kill()
    host.transport = right
    right.reconnect()
    consumer = await host.start()
    assert await receive_all(consumer, 60) == []
    assert consumer.statistics().nacked == 150


async def test_a_cumulative_ack_at_another_cluster_deletes_no_record(host: Host) -> None:
    right = host.transport
    options = {"consumer_type": ConsumerType.Exclusive}
    put_numbers(right, 10)
    consumer = await host.start(**options)
    messages = [await consumer.receive(timeout=10) for _ in range(10)]
    await consumer.negative_acknowledge(messages[-1], delay=HOUR)
    wrong = await wiped(host)
    put_numbers(wrong, 10)
    consumer = await host.start(**options)
    for _ in range(10):
        message = await consumer.receive(timeout=10)
    await consumer.acknowledge_cumulative(message)
    await asyncio.sleep(5)
    await host.stop()
    host.transport = right
    right.reconnect()
    consumer = await host.start(**options)
    delivered = await receive_all(consumer, 60)
    assert [int(each.data()) for each in delivered] == list(range(9))


async def test_a_restart_at_the_same_cluster_finds_no_mismatch(host: Host) -> None:
    put_numbers(host.transport, 150)
    await nack_all(host, 150)
    await host.kill()
    consumer = await host.start()
    assert await receive_all(consumer, 60) == []
    assert mismatched(consumer) == 0
    delivered = await receive_all(consumer, 2 * HOUR)
    assert len(delivered) == 150 and {each.redelivery_count() for each in delivered} == {1}


async def fails(consumer: Consumer, kind: str) -> None:
    if kind == "pop":
        await consumer.pop(1, wait=60)
    elif kind == "batch":
        while await consumer.batch_receive():
            pass
    else:
        while True:
            await consumer.receive(timeout=60)


@pytest.mark.parametrize("kind", ["receive", "batch", "pop"])
async def test_another_cluster_is_an_error_after_a_hundred_messages(host: Host, kind: str) -> None:
    put_numbers(host.transport, 150)
    await nack_all(host, 150)
    transport = await wiped(host)
    put_numbers(transport, 150)
    consumer = await host.start()
    await asyncio.sleep(1)
    with pytest.raises(StateMismatchError, match=r"on_mismatch=.fresh") as caught:
        await fails(consumer, kind)
    assert str(host.path) in str(caught.value) and TOPIC in str(caught.value)
    with pytest.raises(StateMismatchError):
        await consumer.receive()
    assert mismatched(consumer) == 100
    assert not transport.recorded("ACK")
    await consumer.close()
    assert transport.backlog(TOPIC, "s") == 150


async def test_another_cluster_stops_a_message_listener_and_is_reported_as_an_event(
    host: Host,
) -> None:
    put_numbers(host.transport, 120)
    await nack_all(host, 120)
    transport = await wiped(host)
    put_numbers(transport, 120)
    events: list[object] = []
    got: list[Message] = []
    consumer = await host.start(
        message_listener=lambda consumer, message: got.append(message),
        event_listener=events.append,
    )
    await asyncio.sleep(1)
    assert len(got) < 100  # messages before the hundredth comparison
    assert any(isinstance(getattr(each, "error", None), StateMismatchError) for each in events)
    assert consumer.statistics().failure is not None


async def test_on_mismatch_fresh_goes_on_with_another_cluster(host: Host) -> None:
    put_numbers(host.transport, 150)
    await nack_all(host, 150)
    transport = await wiped(host)
    put_numbers(transport, 150)
    consumer = await host.start(state={"on_mismatch": "fresh"})
    assert len(await receive_all(consumer)) == 150
    assert mismatched(consumer) == 150


async def test_one_message_of_the_same_cluster_prevents_the_mismatch_error(host: Host) -> None:
    """Then some records are damaged or of before, and the rest is good."""
    put_numbers(host.transport, 150)
    await nack_all(host, 150)
    await host.stop()
    store = RocksStore(host.path, wall_now_ms=0)
    records = store.topic_store(TOPIC, "s").records
    for (ledger, entry), record in records.entries_waiting()[1:]:
        records._write((ledger, entry), record._replace(fingerprint=1 << 24 | 1))
    store.close()
    consumer = await host.start()
    assert len(await receive_all(consumer)) == 149
    assert mismatched(consumer) == 149


async def test_fewer_than_a_hundred_mismatches_are_no_error(host: Host) -> None:
    put_numbers(host.transport, 99)
    await nack_all(host, 99)
    transport = await wiped(host)
    put_numbers(transport, 120)
    consumer = await host.start()
    assert len(await receive_all(consumer)) == 120


async def test_a_topic_created_again_while_a_consumer_waits_loses_its_old_due_times(
    host: Host,
) -> None:
    """The consumer lives on, as over a failover of the cluster behind its address."""
    put_numbers(host.transport, 10)
    consumer = await host.start()
    for _ in range(10):
        await consumer.negative_acknowledge(await consumer.receive(timeout=10), delay=HOUR)
    durability = parts_of(consumer).state_writer
    assert durability is not None
    (topic_store,) = durability._writers.values()
    for key, record in topic_store._records.entries_waiting():
        topic_store._records._write(key, record._replace(fingerprint=1 << 24 | 1))
    host.transport.disconnect()
    host.transport.reconnect()
    assert len(await receive_all(consumer)) == 10
    assert consumer.statistics().nacked == 0


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover])
async def test_exclusive_and_failover_compare_fingerprints_too(
    host: Host, kind: ConsumerType
) -> None:
    put_numbers(host.transport, 10)
    consumer = await host.start(consumer_type=kind)
    for _ in range(10):
        message = await consumer.receive(timeout=10)
    await consumer.negative_acknowledge(message, delay=HOUR)
    transport = await wiped(host)
    put_numbers(transport, 10)
    consumer = await host.start(consumer_type=kind)
    delivered = await receive_all(consumer, 10)
    assert [int(each.data()) for each in delivered] == list(range(10))


# Handles of before


async def test_a_handle_of_another_cluster_acks_no_message(host: Host) -> None:
    put_numbers(host.transport, 3)
    consumer = await host.start()
    handles = [each.handle for each in await consumer.pop(3, lease=HOUR)]
    transport = await wiped(host)
    consumer = await host.start()
    with pytest.raises(MessageNotHeldError, match="another cluster"):
        await consumer.lease(handles[0])  # nothing has come
    put_numbers(transport, 3)
    for handle in handles:
        with pytest.raises(LeaseLostError):
            await consumer.lease(handle)
    assert len(await receive_all(consumer)) == 3
    assert not transport.recorded("ACK")


async def test_a_lease_by_handle_waits_for_the_first_message(host: Host) -> None:
    put_numbers(host.transport, 3)
    consumer = await host.start()
    (lease, *_) = await consumer.pop(3, lease=HOUR)
    handle = lease.handle
    await host.kill()
    host.transport.disconnect()
    starting = asyncio.ensure_future(host.start())
    await asyncio.sleep(0.1)
    host.transport.reconnect()
    consumer = await starting
    await (await consumer.lease(handle)).ack()


async def test_a_lease_by_handle_that_waits_raises_closed_error_at_close(host: Host) -> None:
    put_numbers(host.transport, 3)
    consumer = await host.start()
    (lease, *_) = await consumer.pop(3, lease=HOUR)
    handle = lease.handle
    await wiped(host)
    consumer = await host.start()
    waiting = asyncio.ensure_future(consumer.lease(handle))
    await asyncio.sleep(1)
    assert not waiting.done()
    await consumer.close()
    with pytest.raises(ClosedError, match="the consumer was closed"):
        await waiting


async def test_a_lease_by_handle_waits_no_longer_when_another_consumer_gets_a_message(
    host: Host,
) -> None:
    put_numbers(host.transport, 3)
    consumer = await host.start()
    (lease, *_) = await consumer.pop(3, lease=HOUR)
    handle = lease.handle
    await host.kill()
    host.transport.disconnect()
    starting = [asyncio.ensure_future(host.start()) for _ in range(2)]
    await asyncio.sleep(0.1)
    host.transport.reconnect()
    for consumer in await asyncio.gather(*starting):
        begun = asyncio.get_running_loop().time()
        await (await consumer.lease(handle)).extend(HOUR)
        assert asyncio.get_running_loop().time() - begun < 1


# A clock that jumps in a process


@pytest.mark.parametrize("jump", [2 * HOUR, 40 * 24 * HOUR, -2 * HOUR])
async def test_a_wall_clock_that_jumps_and_returns_redelivers_no_message_early(
    host: Host, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    loop: Any = asyncio.get_running_loop()
    wall = loop.wall_time
    put_numbers(host.transport, 40)
    consumer = await host.start()
    begun = loop.time()
    leases = []
    while len(leases) < 20:
        leases += await consumer.pop(20 - len(leases), lease=HOUR)
    assert all(each.handle for each in leases)
    for _ in range(20):
        await consumer.negative_acknowledge(await consumer.receive(timeout=10), delay=HOUR)
    await asyncio.sleep(30)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "wall_time", lambda: wall() + jump)
        await asyncio.sleep(3)
        if jump > 0:
            host.transport.put(TOPIC, b"40")
            await consumer.acknowledge(await consumer.receive(timeout=10))
            await asyncio.sleep(3)
    await asyncio.sleep(3)
    await host.kill()
    consumer = await host.start()
    assert await receive_all(consumer, 60) == []
    delivered = await receive_all(consumer, 2 * HOUR)
    assert len(delivered) == 40 and {each.redelivery_count() for each in delivered} == {1}
    assert loop.time() >= begun + HOUR


# Names


@pytest.mark.parametrize("name", ["lone \ud800", "\udcff"])
async def test_names_with_a_lone_surrogate_are_refused(host: Host, name: str) -> None:
    for options in ({"topic": name}, {"consumer_name": name}):
        with pytest.raises(ConfigurationError, match="lone surrogate"):
            await host.start(**options)
    (client,) = host.running[:1]
    with pytest.raises(ConfigurationError, match="subscription_name contains a lone surrogate"):
        await client.subscribe(TOPIC, name, state=RocksState(host.path))
    store = RocksStore(host.path, wall_now_ms=0)
    for names in ((name, "s", ""), (TOPIC, name, ""), (TOPIC, "s", name)):
        with pytest.raises(ConfigurationError, match="lone surrogate"):
            store.topic_store(*names)
    assert store.statistics().topics == 0
    store.close()


def test_an_unknown_value_of_on_mismatch_is_refused() -> None:
    with pytest.raises(ConfigurationError, match='on_mismatch must be "error" or "fresh"'):
        RocksState("x", on_mismatch="ignore")  # type: ignore[arg-type]
