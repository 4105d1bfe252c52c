"""Connections cut under a consumer and a reader, with what was sent on them last."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Container

import pytest

import pulsar_encore as encore
from pulsar_encore.options import InitialPosition, Subscription
from pulsar_encore.transport.interface import AckPlan

from .cluster import Cluster, Engine
from .contract_kit import (
    MARKER,
    SUBSCRIPTION,
    before_marker,
    bodies,
    data,
    eventually,
    publish,
    subscribe,
    take,
)
from .recording_listener import SENT_S, Recording
from .relay import Relay

Shared = encore.ConsumerType.Shared
ACKED = 3  # of each batch


class Acking(Recording):
    """Acks what came: all of a plain entry, the first `ACKED` of a batch; again when connected."""

    def on_connected(self, only: Container[int] | None = None) -> None:
        super().on_connected(only)
        self.ack()

    def ack(self) -> None:
        for each in self.deliveries:
            plan = AckPlan(each.source, None, [], [])
            if each.batch_size:
                left = (1 << each.batch_size) - 1 >> ACKED << ACKED
                plan.partial.append((each.ledger, each.entry, each.batch_size, left))
            else:
                plan.entries.append((each.ledger, each.entry))
            self.link.ack(plan)


@pytest.mark.parametrize("batch", [0, 5])
async def test_what_is_acked_when_connected_again_leaves_before_any_permit(
    client: encore.Client, cluster: Cluster, engine: Engine, topic: str, batch: int
) -> None:
    sent = bodies(20)
    await publish(client, topic, sent, batch=batch)
    async with Relay(cluster.url) as relay:
        transport = engine.transport(relay.url)
        subscription = Subscription(
            topics=(topic,),
            subscription_name=SUBSCRIPTION,
            consumer_type=Shared,
            initial_position=InitialPosition.Earliest,
        )
        acking = Acking(await transport.subscribe(subscription))
        await acking.next(len(sent))
        relay.lose_what_is_sent()
        acking.ack()
        await asyncio.sleep(SENT_S)
        relay.cut()
        await publish(client, topic, [MARKER])
        again: list[bytes] = []
        while MARKER not in again:
            again += [body for body, _ in await acking.next(1)]
        assert "connected" in acking.events
        unacked = [body for at, body in enumerate(sent) if batch and at % batch >= ACKED]
        if engine.acks_first:
            assert sorted(again) == sorted([*unacked, MARKER])
        else:  # its library asks by itself; the consumer above tells what it had acked
            assert set(unacked) < set(again) <= {*sent, MARKER}
        await transport.close()


@pytest.mark.parametrize("batch", [0, 5])
async def test_what_was_acked_and_lost_with_its_connection_is_not_handed_out_again(
    client: encore.Client, cluster: Cluster, engine: Engine, topic: str, batch: int
) -> None:
    sent = bodies(20)
    await publish(client, topic, sent, batch=batch)
    async with Relay(cluster.url) as relay, engine.client(relay.url) as other:
        consumer = await subscribe(other, topic, ack_group_time_ms=10)
        got = await take(consumer, len(sent))
        relay.lose_what_is_sent()
        await consumer.acknowledge(got[:13])
        await asyncio.sleep(SENT_S)
        relay.cut()
        assert await before_marker(client, topic, consumer) == []
        await consumer.acknowledge(got[13:])
        await eventually(lambda: cluster.backlog(topic, SUBSCRIPTION), 0)


@pytest.mark.parametrize("batch", [0, 5])
@pytest.mark.parametrize("inclusive", [False, True])
async def test_a_reader_goes_on_where_it_was_when_its_connection_is_cut(
    client: encore.Client,
    cluster: Cluster,
    engine: Engine,
    topic: str,
    batch: int,
    inclusive: bool,
) -> None:
    sent = bodies(30)
    await publish(client, topic, sent, batch=batch)
    async with (
        Relay(cluster.url) as relay,
        engine.client(relay.url) as other,
        other.create_reader(
            topic,
            encore.MessageId.earliest,
            receiver_queue_size=10,
            start_message_id_inclusive=inclusive,
        ) as reader,
    ):
        got = [await reader.read_next(15_000) for _ in range(7)]
        for _ in range(2):
            relay.cut()
            got += [await reader.read_next(15_000) for _ in range(11)]
        got.append(await reader.read_next(15_000))
        assert data(got) == sent
        await publish(client, topic, [MARKER])
        assert (await reader.read_next(15_000)).data() == MARKER


@pytest.mark.parametrize("batch", [0, 5])
async def test_a_reader_that_sought_a_time_misses_nothing_when_its_connection_is_cut(
    client: encore.Client, cluster: Cluster, engine: Engine, topic: str, batch: int
) -> None:
    async with (
        Relay(cluster.url) as relay,
        engine.client(relay.url) as other,
        other.create_reader(topic, encore.MessageId.latest) as reader,
    ):
        await reader.seek(int(time.time() * 1000) - 60_000)
        with pytest.raises(encore.Timeout):
            await reader.read_next(500)
        relay.cut()
        sent = bodies(10)
        await publish(client, topic, sent, batch=batch)
        if engine.keeps_sought_time:
            got = [await reader.read_next(15_000) for _ in sent]
            assert data(got) == sent
