"""Connections of a consumer and a reader that are cut, with the bytes sent last."""

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
ACKED = 3  # messages acked of each batch


class Acking(Recording):
    """Acks all of an unbatched entry and the first `ACKED` messages of a batch, again on
    reconnect.
    """

    def on_connected(self, only: Container[int] | None = None) -> None:
        super().on_connected(only)
        self.ack()

    def ack(self) -> None:
        for each in self.deliveries:
            plan = AckPlan(each.topic_number, None, [], [])
            if each.batch_size:
                left = (1 << each.batch_size) - 1 >> ACKED << ACKED
                plan.partial.append((each.ledger, each.entry, each.batch_size, left))
            else:
                plan.entries.append((each.ledger, each.entry))
            self.consumer.ack(plan)


@pytest.mark.parametrize("batch", [0, 5])
async def test_acks_made_on_reconnect_are_sent_before_any_permit(
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
        relay.drop_client_bytes()
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
        # the C++ client requests messages on its own, and the consumer above filters acked ones
        else:
            assert set(unacked) < set(again) <= {*sent, MARKER}
        await transport.close()


@pytest.mark.parametrize("batch", [0, 5])
async def test_acks_lost_with_the_connection_are_repeated_without_another_delivery(
    client: encore.Client, cluster: Cluster, engine: Engine, topic: str, batch: int
) -> None:
    sent = bodies(20)
    await publish(client, topic, sent, batch=batch)
    async with Relay(cluster.url) as relay, engine.client(relay.url) as other:
        consumer = await subscribe(other, topic, ack_group_time_ms=10)
        got = await take(consumer, len(sent))
        relay.drop_client_bytes()
        await consumer.acknowledge(got[:13])
        await asyncio.sleep(SENT_S)
        relay.cut()
        assert await before_marker(client, topic, consumer) == []
        await consumer.acknowledge(got[13:])
        await eventually(lambda: cluster.backlog(topic, SUBSCRIPTION), 0)


@pytest.mark.parametrize("batch", [0, 5])
@pytest.mark.parametrize("inclusive", [False, True])
async def test_a_reader_continues_at_its_position_when_its_connection_is_cut(
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
async def test_a_reader_after_a_seek_to_a_time_misses_no_message_when_its_connection_is_cut(
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
