"""What a broker does that no client shows: reads, permits and names, on a bare socket."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from pulsar_encore.wire import pb

from .bare import Bare
from .cluster import Cluster

SUB = pb.CommandSubscribe
BACKLOG = 3000
ROUNDS = 12


async def rewound(
    bare: Bare, topic: str, at: dict[tuple[int, int], int], *, dry: bool
) -> list[int]:
    """What comes after a REDELIVER, by number; the consumer is new and gone afterwards.

    Args:
        at: Number of each entry.
        dry: All permits are used up before the REDELIVER, and new ones come behind it.
    """
    await bare.subscribe(topic, SUB.Exclusive, consumer_epoch=0)
    bare.send(bare.flow(1000))
    for _ in range(1000):
        await bare.message()
    if dry:
        bare.send(bare.redeliver(epoch=1), bare.flow(BACKLOG))
    else:
        bare.send(bare.flow(1000), bare.redeliver(epoch=1), bare.flow(BACKLOG))
    got = await bare.messages()
    await bare.unsubscribed()
    seqs = [at[m.message_id.ledgerId, m.message_id.entryId] for m in got if m.consumer_epoch == 1]
    assert seqs == sorted(set(seqs))
    assert seqs[0] == 0
    return seqs


async def test_a_rewind_that_meets_a_read_under_way_may_skip_entries(
    cluster: Cluster, topic: str
) -> None:
    async with Bare(cluster.url) as bare:
        at = {place: n for n, place in enumerate(await bare.publish(topic, BACKLOG))}
        for _ in range(ROUNDS):  # about two of three do
            seqs = await rewound(bare, topic, at, dry=False)
            if len(seqs) < BACKLOG:
                break
        else:
            raise AssertionError(f"no rewind of {ROUNDS} was overtaken")
        # One gap, of whole blocks, and all behind it came.
        [gap] = [n for n, (a, b) in enumerate(pairwise(seqs)) if b != a + 1]
        assert seqs[gap + 1 :] == list(range(seqs[gap + 1], BACKLOG))


async def test_a_rewind_without_permits_outstanding_brings_everything(
    cluster: Cluster, topic: str
) -> None:
    async with Bare(cluster.url) as bare:
        at = {place: n for n, place in enumerate(await bare.publish(topic, BACKLOG))}
        # One in seventy is overtaken even so, on Pulsar.
        lengths = [len(await rewound(bare, topic, at, dry=True)) for _ in range(3)]
        assert lengths.count(BACKLOG) >= 2


@pytest.mark.parametrize(
    ("kind", "entries"), [(SUB.Exclusive, 20), (SUB.Key_Shared, 20), (SUB.Shared, 2)]
)
async def test_permits_count_entries_within_one_read_but_not_on_shared(
    cluster: Cluster, topic: str, kind: int, entries: int
) -> None:
    async with Bare(cluster.url) as bare:
        await bare.publish(topic, 50, batch=10)
        await bare.subscribe(topic, kind)
        for permits in (20, entries * 10):
            bare.send(bare.flow(permits))
            assert len(await bare.messages()) == entries


@pytest.mark.parametrize("kind", [SUB.Exclusive, SUB.Failover, SUB.Shared, SUB.Key_Shared])
async def test_an_unload_forgets_partial_acks_and_counts(
    cluster: Cluster, topic: str, kind: int
) -> None:
    async with Bare(cluster.url) as bare:
        places = await bare.publish(topic, 2, batch=4)
        await bare.subscribe(topic, kind)
        bare.send(bare.flow(100))
        assert [seen(m) for m in await bare.messages()] == [(0, []), (0, [])]
        bare.send(bare.redeliver(places[:1]), bare.ack_part(places[1], 0b1100))
        # The single-active types rewind, count nothing and tell what is left of a batch.
        shares = kind in (SUB.Shared, SUB.Key_Shared)
        again = await bare.messages()
        assert [seen(m) for m in again[:1]] == [(1, []) if shares else (0, [])]
        bare.send(bare.redeliver(places))
        again = await bare.messages()
        expected = [(2, []), (1, [12])] if shares else [(0, []), (0, [12])]
        assert [seen(m) for m in again] == expected
        await cluster.unload(topic)
        assert (await bare.answer("CLOSE_CONSUMER")).HasField("close_consumer")
    async with Bare(cluster.url) as bare:
        for _ in range(50):  # while the topic is being loaded
            if (await bare.subscribe(topic, kind)).HasField("success"):
                break
            await asyncio.sleep(0.1)
        bare.send(bare.flow(100))
        assert [seen(m) for m in await bare.messages()] == [(0, []), (0, [])]


def seen(message: pb.CommandMessage) -> tuple[int, list[int]]:
    """Redelivery count and ack set."""
    return message.redelivery_count, list(message.ack_set)


async def test_a_partition_of_nothing_is_refused(cluster: Cluster, topic: str) -> None:
    async with Bare(cluster.url) as bare:
        for end in ("-partition-0", "-partition-17"):
            for refused in (
                await bare.subscribe(topic + end, SUB.Shared),
                await bare.produce(topic + end),
            ):
                assert pb.ServerError.Name(refused.error.error) == "NotAllowedError"
        await cluster.create_partitioned_topic(topic, 1)
        assert (await bare.subscribe(f"{topic}-partition-0", SUB.Shared)).HasField("success")


@pytest.mark.parametrize("end", ["-partition-", "-partition-a", "-partition-07"])
async def test_a_name_that_only_looks_like_a_partition_is_a_topic(
    cluster: Cluster, topic: str, end: str
) -> None:
    async with Bare(cluster.url) as bare:
        assert (await bare.subscribe(topic + end, SUB.Shared)).HasField("success")
