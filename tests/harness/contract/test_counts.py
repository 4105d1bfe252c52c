"""The broker's redelivery counts and ack sets, through the transport interface."""

from __future__ import annotations

import pytest

import pulsar_encore as encore
from pulsar_encore.transport.interface import Transport

from .cluster import Cluster, Engine
from .contract_kit import bodies, data, publish, subscribe, take
from .recording_listener import record

Exclusive, Failover = encore.ConsumerType.Exclusive, encore.ConsumerType.Failover
KeyShared = encore.ConsumerType.KeyShared


def at(count: int, *payloads: bytes) -> list[tuple[bytes, int]]:
    return [(payload, count) for payload in payloads]


async def test_each_redelivery_increases_the_count_by_one(
    client: encore.Client, transport: Transport, topic: str
) -> None:
    await publish(client, topic, [b"a"])
    recording = await record(transport, topic)
    for count in range(4):
        assert await recording.next(1) == at(count, b"a")
        recording.redeliver_last()
    await recording.consumer.close()


async def test_concurrent_redelivery_requests_may_each_be_counted(
    client: encore.Client, transport: Transport, topic: str
) -> None:
    """Pulsar reads the count when it writes a copy. The second request may have arrived by then
    (seen once on 4.2.4), so a consumer never requests a message twice for one attempt.
    """
    await publish(client, topic, [b"a", b"b"], batch=2)
    recording = await record(transport, topic)
    assert await recording.next(2) == at(0, b"a", b"b")
    recording.redeliver_last()
    recording.redeliver_last()
    assert await recording.next(2) in (at(1, b"a", b"b"), at(2, b"a", b"b"))
    await recording.consumer.close()


async def test_a_partial_ack_resets_the_count(
    client: encore.Client, transport: Transport, topic: str
) -> None:
    """A batch of four, redelivered again and again, with siblings acked at counts 1 and 2: 0, 1, 1,
    2, 1.
    """
    await publish(client, topic, [b"a", b"b", b"c", b"d"], batch=4)
    recording = await record(transport, topic)
    assert await recording.next(4) == at(0, b"a", b"b", b"c", b"d")
    recording.redeliver_last()
    assert await recording.next(4) == at(1, b"a", b"b", b"c", b"d")
    await recording.ack_indexes(0)
    recording.redeliver_last()
    assert await recording.next(3) == at(1, b"b", b"c", b"d")
    recording.redeliver_last()
    assert await recording.next(3) == at(2, b"b", b"c", b"d")
    await recording.ack_indexes(0, 1)
    recording.redeliver_last()
    assert await recording.next(2) == at(1, b"c", b"d")
    await recording.consumer.close()


async def test_the_count_is_lost_with_the_last_consumer(
    client: encore.Client, transport: Transport, topic: str
) -> None:
    await publish(client, topic, [b"a"])
    recording = await record(transport, topic)
    assert await recording.next(1) == at(0, b"a")
    recording.redeliver_last()
    assert await recording.next(1) == at(1, b"a")
    await recording.consumer.close()
    recording = await record(transport, topic)
    assert await recording.next(1) == at(0, b"a")
    await recording.consumer.close()


async def test_the_count_is_kept_while_another_consumer_is_connected(
    client: encore.Client, transport: Transport, topic: str
) -> None:
    await publish(client, topic, [b"a"])
    leaving = await record(transport, topic)
    assert await leaving.next(1) == at(0, b"a")
    leaving.redeliver_last()
    assert await leaving.next(1) == at(1, b"a")
    staying = await record(transport, topic)
    await leaving.consumer.close()
    assert await staying.next(1) == at(1, b"a")
    staying.redeliver_last()
    assert await staying.next(1) == at(2, b"a")
    await staying.consumer.close()


async def test_an_unload_resets_counts_and_partial_acks_on_the_transport(
    client: encore.Client, transport: Transport, cluster: Cluster, topic: str
) -> None:
    await publish(client, topic, [b"a", b"b"], batch=2)
    recording = await record(transport, topic)
    assert await recording.next(2) == at(0, b"a", b"b")
    recording.redeliver_last()
    assert await recording.next(2) == at(1, b"a", b"b")
    await recording.ack_indexes(0)
    await cluster.unload(topic)
    assert await recording.next(2) == at(0, b"a", b"b")
    await recording.consumer.close()


@pytest.mark.parametrize("kind", [Exclusive, Failover])
async def test_a_rewind_does_not_increase_the_count(
    client: encore.Client, transport: Transport, topic: str, kind: encore.ConsumerType
) -> None:
    await publish(client, topic, [b"a", b"b"])
    recording = await record(transport, topic, kind)
    for _ in range(3):
        assert await recording.next(2) == at(0, b"a", b"b")
        recording.consumer.redeliver_all(recording.deliveries[-1].topic_number)
    await recording.consumer.close()


async def test_redelivering_all_increases_the_count_on_shared(
    client: encore.Client, transport: Transport, topic: str
) -> None:
    await publish(client, topic, [b"a", b"b"])
    recording = await record(transport, topic)
    for count in range(3):
        assert sorted(await recording.next(2)) == at(count, b"a", b"b")
        recording.consumer.redeliver_all(None)
    await recording.consumer.close()


async def test_ack_sets_survive_reopening_and_are_delivered_if_supported(
    client: encore.Client, transport: Transport, engine: Engine, topic: str
) -> None:
    await publish(client, topic, bodies(5), batch=5)
    recording = await record(transport, topic)
    await recording.next(5)
    await recording.ack_indexes(1, 3)
    await recording.consumer.close()
    recording = await record(transport, topic)
    assert await recording.next(3) == at(0, b"00000", b"00002", b"00004")
    expected = 0b10101 if engine.sees_ack_sets else -1
    assert {each.ack_set for each in recording.deliveries} == {expected}
    await recording.consumer.close()


async def test_a_receiver_queue_of_zero_works_or_is_not_supported(
    client: encore.Client, engine: Engine, topic: str
) -> None:
    """The consumer requests a message only while a `receive` waits. A busy consumer therefore holds
    none.
    """
    if not engine.zero_queue:
        with pytest.raises(encore.NotSupportedError, match="receiver_queue_size"):
            await subscribe(client, topic, receiver_queue_size=0)
        return
    busy = await subscribe(client, topic, receiver_queue_size=0)
    await publish(client, topic, [b"a"])
    [first] = await take(busy, 1)
    await publish(client, topic, [b"b", b"c"])
    free = await subscribe(client, topic, receiver_queue_size=0)
    assert data(await take(free, 2)) == [b"b", b"c"]
    with pytest.raises(encore.ReceiveTimeout):
        await busy.receive(timeout=0.1)
    await publish(client, topic, bodies(20), batch=10)
    assert data(await take(busy, 20)) == bodies(20)
    await busy.acknowledge(first)


async def test_acks_while_disconnected_are_refused_as_retryable(
    client: encore.Client, transport: Transport, topic: str
) -> None:
    await publish(client, topic, [b"a", b"b"], batch=2)
    recording = await record(transport, topic)
    await recording.next(2)
    await recording.consumer.close()
    with pytest.raises(encore.TransportError) as refused:
        await recording.ack_indexes(0)
    assert refused.value.retryable
