"""Pending nacks that spill to disk, on a real Pulsar: every message is redelivered once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import pytest

import pulsar_encore as encore
from tests.harness.admin import Admin
from tests.harness.pulsar_server import Server

COUNT = 4_000
DELAY_S = 6.0


def spilled_directories(path: Path) -> list[Path]:
    return list(path.glob("spilled-*"))


@pytest.mark.parametrize(
    ("transport", "kind", "batch", "partitions"),
    [
        ("native", encore.ConsumerType.Shared, 1, 0),
        ("native", encore.ConsumerType.KeyShared, 1, 3),
        ("native", encore.ConsumerType.Shared, 10, 3),
        ("stock", encore.ConsumerType.Shared, 1, 0),
    ],
)
async def test_spilled_nacks_are_redelivered_once(
    pulsar: Server,
    topic: str,
    tmp_path: Path,
    transport: str,
    kind: encore.ConsumerType,
    batch: int,
    partitions: int,
) -> None:
    admin = Admin(pulsar.admin_url)
    if partitions:
        await asyncio.to_thread(admin.create_partitioned_topic, topic, partitions)
    async with encore.Client(pulsar.service_url, transport=transport) as client:
        consumer = await client.subscribe(
            topic,
            "s",
            kind,
            negative_ack_redelivery_delay_ms=int(DELAY_S * 1000),
            nack_index=encore.SpillingNackIndex(
                tmp_path,
                min_index_count_per_bucket=200,
                max_indexes_per_bucket_snapshot_segment=50,
                max_num_buckets=4,
            ),
        )
        producer = await client.create_producer(
            topic,
            batching_enabled=batch > 1,
            batching_max_messages=max(2, batch),
            max_pending_messages=COUNT,
        )
        await asyncio.gather(
            *(producer.send(b"%d" % each, partition_key=f"{each % 50}") for each in range(COUNT))
        )
        nacked_at: dict[bytes, float] = {}
        for _ in range(COUNT):
            message = await consumer.receive(timeout=30)
            nacked_at[message.data()] = time.monotonic()
            await consumer.negative_acknowledge(message)
        assert len(nacked_at) == COUNT
        statistics = consumer.statistics()
        assert statistics.nack_index is not None and statistics.nack_index.snapshots
        assert statistics.nack_index.error is None
        names = {each.name for each in consumer.metrics()}
        assert "pulsar_delayed_message_index_bucket_total" in names
        redelivered: Counter[bytes] = Counter()
        for _ in range(COUNT):
            message = await consumer.receive(timeout=60)
            assert time.monotonic() - nacked_at[message.data()] >= DELAY_S
            assert message.redelivery_count() >= 1
            redelivered[message.data()] += 1
            await consumer.acknowledge(message)
        assert set(redelivered.values()) == {1} and len(redelivered) == COUNT
        with pytest.raises(encore.ReceiveTimeout):
            await consumer.receive(timeout=2)
        assert consumer.statistics().unacked == 0
        await consumer.unsubscribe()
    assert not spilled_directories(tmp_path)
