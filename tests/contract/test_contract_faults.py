"""A seeded workload while the development broker misbehaves: no loss, nothing acked again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random, randrange

import pytest

import pulsar_encore as encore
from pulsar_encore.devbroker import BrokerThread, Fault, FaultPlan
from tests.harness.contract.cluster import Engine
from tests.harness.contract.contract_kit import (
    SUBSCRIPTION,
    before_marker,
    bodies,
    data,
    eventually,
    publish,
    subscribe,
    take,
    work_off,
)

StartBroker = Callable[..., BrokerThread]

REDELIVER = "REDELIVER_UNACKNOWLEDGED_MESSAGES"

DOUBLED = 20
FAULTS = {
    "closed around messages": [
        Fault(kind="close_before", command="MESSAGE", nth=7),
        Fault(kind="close_after", command="MESSAGE", nth=40),
    ],
    "closed around acks": [
        Fault(kind="close_before", command="ACK", nth=2),
        Fault(kind="close_after", command="ACK", nth=3),
    ],
    "closed before a redelivery": [Fault(kind="close_before", command=REDELIVER)],
    "closed after a redelivery": [Fault(kind="close_after", command=REDELIVER)],
    "closed before a flow": [Fault(kind="close_before", command="FLOW", nth=2)],
    "outage at a message": [Fault(kind="outage", command="MESSAGE", nth=15, outage_s=0.1)],
    "outage at an ack": [Fault(kind="outage", command="ACK", nth=2, outage_s=0.1)],
    "outage at a redelivery": [Fault(kind="outage", command=REDELIVER, outage_s=0.1)],
    "doubled": [
        Fault(kind="duplicate", command="MESSAGE", nth=3, times=DOUBLED),
        Fault(kind="duplicate", command="ACK"),
        Fault(kind="duplicate", command=REDELIVER),
    ],
    "late": [
        Fault(kind="delay", command="MESSAGE", nth=3, times=10, delay_ms=150),
        Fault(kind="delay", command="ACK", delay_ms=200),
    ],
}


async def backlog(broker: BrokerThread, topic: str) -> int:
    return await asyncio.to_thread(broker.backlog, topic, SUBSCRIPTION)


@pytest.mark.parametrize("name", FAULTS)
async def test_a_fault_in_the_middle_of_the_work(
    start_broker: StartBroker, engine: Engine, topic: str, name: str
) -> None:
    seed = randrange(2**32)
    print(f"seed {seed}")  # noqa: T201
    broker = start_broker()
    sent = bodies(120)
    async with engine.client(broker.url) as client:
        await publish(client, topic, sent[:60], batch=6)
        await publish(client, topic, sent[60:])
        broker.faults = plan = FaultPlan(FAULTS[name])
        consumer = await subscribe(
            client, topic, receiver_queue_size=20, ack_group_time_ms=20, ack_group_max_size=10
        )
        again = await work_off(consumer, sent, Random(seed), nack_delay=0.1, nack_times=1)
        if name == "doubled" and engine.name == "stock":
            # A second copy is told from a redelivery until the ack of the first has left. In the
            # stock library's queue it may wait for longer than that, as long as the loop is busy.
            assert len(again) <= DOUBLED
        else:
            assert again == []
        await eventually(lambda: backlog(broker, topic), 0)
        assert {one.fault for one in plan.fired} == set(FAULTS[name])


async def test_connections_dropped_at_random(
    start_broker: StartBroker, engine: Engine, topic: str
) -> None:
    sent = bodies(300)

    async def run(seed: int) -> list[bytes]:
        rng = Random(seed)
        broker = start_broker()
        drops = {rng.randrange(20, 280) for _ in range(3)}

        async def drop(received: int) -> None:
            if received in drops:
                await asyncio.to_thread(broker.drop_connections)

        async with engine.client(broker.url) as client:
            await publish(client, topic, sent[:150], batch=10)
            await publish(client, topic, sent[150:])
            consumer = await subscribe(client, topic, receiver_queue_size=50)
            again = await work_off(consumer, sent, rng, step=drop)
            await eventually(lambda: backlog(broker, topic), 0)
            return again

    assert await asyncio.gather(*map(run, range(3))) == [[], [], []]


async def test_acks_made_during_an_outage_are_sent_after_it(
    start_broker: StartBroker, engine: Engine, topic: str
) -> None:
    broker = start_broker()
    async with engine.client(broker.url) as client:
        await publish(client, topic, bodies(40), batch=10)
        consumer = await subscribe(client, topic)
        got = await take(consumer, 40)
        await asyncio.to_thread(broker.outage, 0.3)
        await consumer.acknowledge(got[:35])
        await consumer.negative_acknowledge(got[35], delay=0.1)
        again = await take(consumer, 1)
        assert data(again) == [b"00035"]
        await consumer.acknowledge(got[36:] + again)
        await eventually(lambda: backlog(broker, topic), 0)
        assert await before_marker(client, topic, consumer) == []


async def test_a_resubscription_that_is_refused_for_a_while(
    start_broker: StartBroker, engine: Engine, topic: str
) -> None:
    broker = start_broker()
    async with engine.client(broker.url) as client:
        await publish(client, topic, bodies(5))
        consumer = await subscribe(client, topic)
        got = await take(consumer, 5)
        broker.faults = plan = FaultPlan([Fault(kind="refuse", command="SUBSCRIBE", times=2)])
        await asyncio.to_thread(broker.drop_connections)
        await consumer.acknowledge(got)
        assert await before_marker(client, topic, consumer) == []
        assert len(plan.fired) == 2
        await eventually(lambda: backlog(broker, topic), 0)


@pytest.mark.parametrize(
    ("error", "retryable"),
    [("AuthorizationError", False), ("TopicNotFound", False), ("ConsumerBusy", True)],
)
async def test_a_subscriber_refused_gets_the_brokers_name_for_it(
    start_broker: StartBroker, engine: Engine, topic: str, error: str, retryable: bool
) -> None:
    broker = start_broker()
    broker.faults = FaultPlan([Fault(kind="refuse", command="SUBSCRIBE", error=error)])
    async with engine.client(broker.url) as client:
        with pytest.raises(encore.TransportError) as refused:
            await subscribe(client, topic)
        assert (refused.value.result, refused.value.retryable) == (error, retryable)
        await (await subscribe(client, topic)).close()


async def test_authentication_refused_is_named_and_granted_works(
    start_broker: StartBroker, engine: Engine, topic: str
) -> None:
    broker = start_broker(token="secret")
    wrong = encore.AuthenticationToken("wrong")
    options = {"operation_timeout_seconds": 1, "authentication": wrong}
    async with engine.client(broker.url, **options) as client:
        with pytest.raises(encore.TransportError, match="authentication"):
            await subscribe(client, topic)
    right = encore.AuthenticationToken("secret")
    async with engine.client(broker.url, authentication=right) as client:
        await publish(client, topic, bodies(1))
        assert data(await take(await subscribe(client, topic), 1)) == bodies(1)
