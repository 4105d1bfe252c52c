"""Helpers for tests of ordered leases: keyed messages and a consumer in order of the key."""

from __future__ import annotations

from typing import Any

from consumer_kit import TOPIC, Subscribe

from pulsar_encore import Consumer, ConsumerType, Lease
from pulsar_encore.testing import MemoryTransport


async def subscribe_ordered(subscribe: Subscribe, *topics: str, **options: Any) -> Consumer:
    options.setdefault("consumer_type", ConsumerType.KeyShared)
    return await subscribe(*topics, ordered_leases=True, **options)


def put_keyed(
    transport: MemoryTransport, count: int, keys: int = 1, batch: int = 1, first: int = 0
) -> None:
    """Publish the messages `first` to `count` of each key, as `key:number`, the keys in turn."""
    for start in range(first, count, batch):
        for key in range(keys):
            texts = [b"%d:%d" % (key, each) for each in range(start, min(start + batch, count))]
            transport.put(TOPIC, *texts, key=f"k{key}")


def key_and_number(lease: Lease) -> tuple[int, int]:
    key, number = lease.message.data().split(b":")
    return int(key), int(number)
