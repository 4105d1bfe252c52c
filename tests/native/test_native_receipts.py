"""Ack receipts and notices of the native transport, with the broker in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from native_kit import TOPIC, Rig, run, settle

import pulsar_encore as encore
from pulsar_encore import (
    BecameActive,
    BecameInactive,
    Connected,
    ConsumerEvent,
    ConsumerType,
    Disconnected,
    EndOfTopic,
    InitialPosition,
    TopicAdded,
)
from pulsar_encore.devbroker.broker_settings import BrokerSettings
from pulsar_encore.devbroker.rules.faults import Fault, FaultPlan
from pulsar_encore.transport.native.client_settings import ClientSettings

UNLOADED = "an unload"
LOST = "a lost connection"
SILENT = "a broker that does not answer"


def backlog(rig: Rig) -> int:
    return int(rig.service.catalogue.topic(TOPIC).subscriptions["s"].backlog)


async def subscribe(client: encore.Client, topic: str = TOPIC, **options: Any) -> encore.Consumer:
    options.setdefault("consumer_type", ConsumerType.Shared)
    options.setdefault("ack_group_time_ms", 0)
    return await client.subscribe(topic, "s", initial_position=InitialPosition.Earliest, **options)


@pytest.mark.parametrize("lost", ["ACK", "ACK_RESPONSE"])
@pytest.mark.parametrize("how", [UNLOADED, LOST, SILENT])
def test_an_awaited_ack_completes_when_the_broker_has_it(lost: str, how: str) -> None:
    """The ack or its receipt may be lost, and either side may notice."""

    async def main() -> None:
        rig = Rig()
        rig.store(b"a", b"b")
        rig.store(b"c", b"d", batch=True)
        async with rig.client() as client:
            consumer = await subscribe(client, ack_receipt_enabled=True)
            messages = [await consumer.receive(timeout=5) for _ in range(3)]
            await consumer.acknowledge(messages[0])
            assert backlog(rig) == 2
            rig.service.faults = FaultPlan([Fault(kind="drop", command=lost)])
            waiting = asyncio.ensure_future(consumer.acknowledge(messages[1:]))
            await settle()
            assert not waiting.done()
            if how is UNLOADED:
                rig.service.unload(rig.service.catalogue.topic(TOPIC))
            elif how is LOST:
                for session in list(rig.service.sessions):
                    session.abort()
            began = asyncio.get_running_loop().time()
            await waiting
            took_s = asyncio.get_running_loop().time() - began
            assert took_s < 2 * rig.settings.operation_timeout_s + 1
            if how is not SILENT:
                assert took_s < 5, "a reconnect sends them again, whatever is still awaited"
            assert backlog(rig) == 1
            rest = await consumer.receive(timeout=5)
            assert rest.data() == b"d"
            await consumer.acknowledge(rest)
            assert backlog(rig) == 0

    run(main())


def test_unconfirmed_acks_of_any_age_are_sent_before_permits() -> None:
    async def main() -> None:
        rig = Rig(BrokerSettings(record=True), ClientSettings(operation_timeout_s=7200))
        rig.store(b"a")
        async with rig.client() as client:
            consumer = await subscribe(client)
            message = await consumer.receive(timeout=5)
            rig.service.faults = FaultPlan([Fault(kind="drop", command="ACK")])
            await consumer.acknowledge(message)
            await asyncio.sleep(3600)
            assert backlog(rig) == 1
            rig.service.recorder.clear()
            for session in list(rig.service.sessions):
                session.abort()
            with pytest.raises(encore.ReceiveTimeout):
                await consumer.receive(timeout=5)
            names = [each.type for each in rig.service.recorder.find(direction="in")]
            assert names.index("ACK") < names.index("FLOW")
            assert backlog(rig) == 0

    run(main())


def test_failover_changes_the_active_consumer() -> None:
    async def main() -> None:
        rig = Rig(BrokerSettings(failover_delay_ms=50))
        rig.service.catalogue.create_partitioned(TOPIC, 2)
        parts = [f"{TOPIC}-partition-{each}" for each in range(2)]
        ours: list[ConsumerEvent] = []
        theirs: list[ConsumerEvent] = []
        failover: dict[str, Any] = {"consumer_type": ConsumerType.Failover}
        async with rig.client() as client:
            await subscribe(client, consumer_name="a", event_listener=ours.append, **failover)
            await settle()
            assert sorted(map(str, ours)) == sorted(str(BecameActive(each)) for each in parts)
            ours.clear()
            second = await subscribe(
                client, consumer_name="b", event_listener=theirs.append, **failover
            )
            await settle()
            assert ours == [BecameInactive(parts[1])]
            assert sorted(map(str, theirs)) == sorted(
                map(str, [BecameInactive(parts[0]), BecameActive(parts[1])])
            )
            assert second.statistics().inactive_topics == (parts[0],)
            await second.close()
            await settle()
            assert ours[1:] == [BecameActive(parts[1])]

    run(main())


def test_end_of_topic_loss_and_new_partition_are_reported() -> None:
    async def main() -> None:
        rig = Rig()
        rig.service.catalogue.create_partitioned(TOPIC, 1)
        first, second = (f"{TOPIC}-partition-{each}" for each in range(2))
        rig.store(b"last", topic=first)
        events: list[ConsumerEvent] = []
        async with rig.client() as client:
            consumer = await subscribe(client, event_listener=events.append)
            rig.service.terminate(rig.service.catalogue.topic(first))
            await consumer.acknowledge(await consumer.receive(timeout=5))
            await settle()
            assert events == [EndOfTopic(first)]
            assert consumer.has_reached_end_of_topic()
            for session in list(rig.service.sessions):
                session.abort()
            await asyncio.sleep(5)
            assert events[1:] == [Disconnected((first,)), Connected((first,))]
            rig.service.catalogue.create_partitioned(TOPIC, 2)
            await asyncio.sleep(rig.settings.discovery_s + 1)
            assert events[3:] == [TopicAdded(second)]
            assert not consumer.has_reached_end_of_topic()

    run(main())
