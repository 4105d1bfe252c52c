"""Receiving from a real Pulsar: `batch_receive` returns everything, for entries of any size."""

from __future__ import annotations

import asyncio

import pytest

import pulsar_encore as encore
from tests.harness.pulsar_server import Server

MESSAGES = 5000
QUIET = encore.ConsoleLogger(encore.LoggerLevel.Error)


@pytest.mark.parametrize("entry", [505, 1000])
@pytest.mark.parametrize(
    "policy", [None, encore.BatchReceivePolicy(1000, -1, 0), encore.BatchReceivePolicy(300, -1, 50)]
)
@pytest.mark.parametrize("kind", [encore.ConsumerType.Shared, encore.ConsumerType.Exclusive])
async def test_batch_receive_returns_all_messages_in_order(
    pulsar: Server,
    topic: str,
    kind: encore.ConsumerType,
    policy: encore.BatchReceivePolicy | None,
    entry: int,
) -> None:
    async with encore.Client(pulsar.service_url, transport="stock", logger=QUIET) as client:
        async with await client.create_producer(
            topic,
            batching_enabled=True,
            batching_max_messages=entry,
            batching_max_publish_delay_ms=50,
            max_pending_messages=MESSAGES,
        ) as producer:
            await asyncio.gather(*(producer.send(b"%d" % each) for each in range(MESSAGES)))
        async with await client.subscribe(
            topic,
            "s",
            kind,
            initial_position=encore.InitialPosition.Earliest,
            batch_receive_policy=policy,
        ) as consumer:
            got: list[int] = []
            async with asyncio.timeout(60):
                while len(got) < MESSAGES:
                    batch = await consumer.batch_receive()
                    got += [int(each.data()) for each in batch]
                    await consumer.acknowledge(batch)
            assert got == list(range(MESSAGES))
