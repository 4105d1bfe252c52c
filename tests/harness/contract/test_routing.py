"""The stock client sends keys to the partitions that `wire.partition_by_key` computes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random

import pulsar
import pytest

from pulsar_encore.wire.partition_by_key import HashingScheme

from .cluster import Cluster

PARTITIONS = 31
LETTERS = "abcXYZ0189-_/ é中\N{GRINNING FACE}"


@pytest.fixture
def stock_client(cluster: Cluster) -> Iterator[pulsar.Client]:
    client = pulsar.Client(cluster.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


async def test_keys_go_to_the_same_partition_as_with_the_stock_client(
    cluster: Cluster, topic: str, stock_client: pulsar.Client
) -> None:
    rng = Random(7)
    keys = ["".join(rng.choices(LETTERS, k=size)) for size in range(1, 41) for _ in range(25)]
    await cluster.create_partitioned_topic(topic, PARTITIONS)
    producer = await asyncio.to_thread(
        stock_client.create_producer, topic, max_pending_messages=2000
    )
    partitions: dict[str, int] = {}

    def stored(key: str, result: pulsar.Result, message_id: pulsar.MessageId) -> None:
        partitions[key] = message_id.partition()

    for key in keys:
        producer.send_async(
            b"", lambda result, where, key=key: stored(key, result, where), partition_key=key
        )
    await asyncio.to_thread(producer.flush)
    expected = {key: HashingScheme.BoostHash.partition(key, PARTITIONS) for key in keys}
    assert partitions == expected
