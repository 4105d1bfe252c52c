"""Delays that grow with each attempt, on a real Pulsar that counts no redeliveries."""

from __future__ import annotations

import time

import pytest

import pulsar_encore as encore
from tests.harness.pulsar_server import Server


@pytest.mark.parametrize("transport", ["native", "stock"])
@pytest.mark.parametrize("kind", [encore.ConsumerType.Exclusive, encore.ConsumerType.Failover])
async def test_nacks_grow_on_exclusive_and_failover(
    pulsar: Server, topic: str, transport: str, kind: encore.ConsumerType
) -> None:
    table = [0.3, 0.8, 1.5]
    async with encore.Client(pulsar.service_url, transport=transport) as client:
        consumer = await client.subscribe(topic, "s", kind, negative_ack_redelivery_backoff=table)
        producer = await client.create_producer(topic)
        await producer.send(b"poison")
        message = await consumer.receive(timeout=30)
        for count, delay in enumerate([*table, table[-1]], 1):
            began = time.monotonic()
            await consumer.negative_acknowledge(message)
            message = await consumer.receive(timeout=30)
            assert time.monotonic() - began >= delay
            assert message.redelivery_count() == count
        await consumer.acknowledge(message)
