"""A client and a broker without periodic timers, and their reaction to losses."""

from __future__ import annotations

import asyncio
import math

import pytest
from native_kit import TOPIC, URL, Collector, Rig, run, settle, subscription

import pulsar_encore as encore
from pulsar_encore.devbroker.broker_settings import BrokerSettings
from pulsar_encore.devbroker.rules.faults import Fault, FaultPlan
from pulsar_encore.options import ConsumerType
from pulsar_encore.testing import Deadlock
from pulsar_encore.testing import run as run_in_virtual_time
from pulsar_encore.transport.native.client_settings import ClientSettings
from pulsar_encore.transport.native.lookup.refresh_schedule import RefreshSchedule
from pulsar_encore.transport.native.native_transport import NativeTransport

QUIET = ClientSettings(keep_alive_s=math.inf, idle_s=0)
PARTS = "persistent://public/default/parts"
VOLATILE = "non-persistent://public/default/v"


class ManualRefresh:
    """A `RefreshSchedule` that refreshes when a test calls `again`."""

    def __init__(self) -> None:
        self.due = asyncio.Event()
        self.asked_again = 0

    async def next(self, every_s: float) -> None:
        await self.due.wait()
        self.due.clear()

    def again(self) -> None:
        self.asked_again += 1


def quiet(rig: Rig, rounds: list[ManualRefresh]) -> NativeTransport:
    def make() -> RefreshSchedule:
        rounds.append(ManualRefresh())
        return rounds[-1]

    return NativeTransport(URL, QUIET, dialer=rig.dialer, make_round=make)


def test_without_a_keep_alive_and_a_period_there_is_no_timer() -> None:
    async def main() -> None:
        rig = Rig(BrokerSettings(keep_alive_s=math.inf))
        transport = quiet(rig, [])
        transport_consumer = await transport.subscribe(subscription())
        transport_consumer.start(Collector())
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        run_in_virtual_time(main(), deadlock_timeout_s=0.5)


def test_new_partitions_are_looked_for_on_schedule_and_again_after_a_refusal() -> None:
    async def main() -> None:
        rig = Rig(BrokerSettings(keep_alive_s=math.inf))
        rig.service.catalogue.create_partitioned(PARTS, 1)
        rounds: list[ManualRefresh] = []
        transport = quiet(rig, rounds)
        transport_consumer = await transport.subscribe(subscription(topics=(PARTS,)))
        listener = Collector()
        transport_consumer.start(listener)
        rig.service.catalogue.create_partitioned(PARTS, 2)
        await asyncio.sleep(3600)
        assert len(transport_consumer.topic_numbers()) == 1
        rig.service.faults = FaultPlan(
            [Fault(kind="refuse", command="SUBSCRIBE", error="AuthorizationError")]
        )
        rounds[0].due.set()
        await settle()
        assert (len(transport_consumer.topic_numbers()), rounds[0].asked_again) == (1, 1)
        rounds[0].due.set()
        await settle()
        assert (len(transport_consumer.topic_numbers()), rounds[0].asked_again) == (2, 1)
        await transport.close()

    run(main())


def test_a_reader_misses_no_message_of_a_later_partition() -> None:
    """Messages published before the reader finds the partition are after its start position."""

    async def main() -> None:
        rig = Rig()
        rig.service.catalogue.create_partitioned(PARTS, 1)
        rig.store(b"old", topic=f"{PARTS}-partition-0")
        async with (
            rig.client() as client,
            client.create_reader(PARTS, encore.MessageId.latest) as reader,
        ):
            rig.service.catalogue.create_partitioned(PARTS, 2)
            rig.store(b"new", topic=f"{PARTS}-partition-1")
            assert (await reader.read_next(61_000)).data() == b"new"
            with pytest.raises(encore.ReceiveTimeout):
                await reader.read_next(1000)

    run(main())


def test_a_reader_of_a_non_persistent_topic_gets_every_message() -> None:
    """All messages of a non-persistent topic have the same id, so no id is a position."""

    async def main() -> None:
        rig = Rig()
        async with (
            rig.client() as client,
            client.create_reader(VOLATILE, encore.MessageId.latest) as reader,
        ):
            for number in range(3):
                rig.store(b"%d" % number, topic=VOLATILE)
                assert (await reader.read_next(1000)).data() == b"%d" % number

    run(main())


def test_a_position_request_after_a_loss_waits_for_the_connection() -> None:
    async def main() -> None:
        rig = Rig()
        rig.store(b"0", b"1")
        async with rig.client() as client:
            reader = await client.create_reader(TOPIC, encore.MessageId.earliest)
            assert (await reader.read_next(1000)).data() == b"0"
            rig.dialer.drop()
            assert await reader.has_message_available()
            rig.dialer.drop()
            assert (await reader.last_message_id()).entry_id() == 1
            rig.dialer.reachable = False
            rig.dialer.drop()
            began = asyncio.get_running_loop().time()
            assert (await reader.read_next(1000)).data() == b"1"
            with pytest.raises(encore.NotConnected):
                await reader.has_message_available()
            assert asyncio.get_running_loop().time() - began == pytest.approx(30)

    run(main())


def test_the_active_consumer_change_is_reported_after_the_connection() -> None:
    """The broker sends it with its answer to SUBSCRIBE, and both arrive in one read."""

    async def main() -> None:
        rig = Rig()
        transport_consumer, listener = await rig.subscribe(consumer_type=ConsumerType.Failover)
        rig.dialer.drop()
        await settle(1)
        assert listener.names == ["active_changed", "disconnected", "connected", "active_changed"]
        await transport_consumer.close()

    run(main())


def test_a_seek_is_not_reported_as_a_reconnect() -> None:
    async def main() -> None:
        rig = Rig()
        rig.store(b"0")
        events: list[encore.ConsumerEvent] = []
        async with rig.client() as client:
            consumer = await client.subscribe(TOPIC, "s", event_listener=events.append)
            await consumer.seek(encore.MessageId.earliest)
            assert (await consumer.receive(timeout=1)).data() == b"0"
            assert events == []
            rig.dialer.drop()
            await settle(1)
            assert events == [encore.Disconnected((TOPIC,)), encore.Connected((TOPIC,))]

    run(main())


def test_a_retry_delay_can_be_ended_early() -> None:
    async def main() -> None:
        rig = Rig(settings=ClientSettings(backoff_s=50))
        transport_consumer = await rig.transport.subscribe(subscription())
        rig.dialer.drop()
        await settle(1)
        assert not transport_consumer.is_connected()
        rig.transport.retry_now()
        await settle()
        assert transport_consumer.is_connected()
        await rig.transport.close()

    run(main())


def test_callers_get_an_error_when_the_transport_shuts_down() -> None:
    async def main() -> None:
        rig = Rig()
        transport_consumers = [await rig.transport.subscribe(subscription()) for _ in range(2)]
        assert rig.transport.consumers == transport_consumers
        listeners = [Collector(), Collector()]
        for transport_consumer, listener in zip(transport_consumers, listeners, strict=True):
            transport_consumer.start(listener)
        await transport_consumers[0].close()
        assert rig.transport.consumers == transport_consumers[1:]
        rig.transport.shutdown()
        rig.transport.shutdown()
        assert [listener.names for listener in listeners] == [[], ["failed"]]
        assert isinstance(listeners[1].calls[0][1], encore.ClosedError)

    run(main())
