"""What a broker does that no client shows: reads, permits and names, on a bare socket."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from pulsar_encore.wire import key_hashes as hashing
from pulsar_encore.wire import message_id, pb

from .bare import Bare
from .cluster import Cluster

SUB = pb.CommandSubscribe
BACKLOG = 2000


class Rewinding:
    """An Exclusive consumer of a backlog that is rewound without having acked anything.

    Args:
        places: (ledger, entry) of each entry.
    """

    def __init__(self, bare: Bare, places: list[tuple[int, int]]) -> None:
        self._bare = bare
        self._at = {place: number for number, place in enumerate(places)}
        self._epoch = 0

    async def rewind(self, *, flow: int) -> list[int]:
        """REDELIVER behind a FLOW of so many; numbers of what comes then, up to the last one."""
        bare = self._bare
        self._epoch += 1
        before = [bare.flow(flow)] if flow else []
        bare.send(*before, bare.redeliver(epoch=self._epoch), bare.flow(BACKLOG))
        seqs: list[int] = []
        while not seqs or seqs[-1] < BACKLOG - 1:
            message = await bare.message()
            if message.consumer_epoch == self._epoch:
                place = message.message_id
                seqs.append(self._at[place.ledgerId, place.entryId])
        return seqs


async def test_what_a_rewind_brings_is_in_order_from_the_lowest_and_another_one_heals_it(
    cluster: Cluster, topic: str
) -> None:
    async with Bare(cluster.url) as bare:
        rewinding = Rewinding(bare, await bare.publish(topic, BACKLOG))
        await bare.subscribe(topic, SUB.Exclusive, consumer_epoch=0)
        bare.send(bare.flow(1500))
        for _ in range(1000):
            await bare.message()
        # Permits are outstanding: what is being read may be skipped, so one gap is allowed.
        seqs = await rewinding.rewind(flow=300)
        assert seqs[0] == 0
        assert seqs == sorted(set(seqs))
        assert len([1 for a, b in pairwise(seqs) if b != a + 1]) <= 1
        # All was read: no read is under way, and nothing is skipped.
        assert await rewinding.rewind(flow=0) == list(range(BACKLOG))


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
            assert len(await bare.messages(entries)) == entries


@pytest.mark.parametrize("kind", [SUB.Exclusive, SUB.Failover, SUB.Shared, SUB.Key_Shared])
async def test_an_unload_forgets_partial_acks_and_counts(
    cluster: Cluster, topic: str, kind: int
) -> None:
    async with Bare(cluster.url) as bare:
        places = await bare.publish(topic, 2, batch=4)
        await bare.subscribe(topic, kind)
        bare.send(bare.flow(100))
        assert [seen(m) for m in await bare.messages(2)] == [(0, []), (0, [])]
        bare.send(bare.redeliver(places[:1]), bare.ack_part(places[1], 0b1100))
        # The single-active types rewind, count nothing and tell what is left of a batch.
        shares = kind in (SUB.Shared, SUB.Key_Shared)
        again = await bare.messages(1 if shares else 2)
        assert [seen(m) for m in again[:1]] == [(1, []) if shares else (0, [])]
        bare.send(bare.redeliver(places))
        expected = [(2, []), (1, [12])] if shares else [(0, []), (0, [12])]
        assert [seen(m) for m in await bare.messages(2)] == expected
        await cluster.unload(topic)
        assert (await bare.answer("CLOSE_CONSUMER")).HasField("close_consumer")
    async with Bare(cluster.url) as bare:
        for _ in range(50):  # while the topic is being loaded
            if (await bare.subscribe(topic, kind)).HasField("success"):
                break
            await asyncio.sleep(0.1)
        bare.send(bare.flow(100))
        assert [seen(m) for m in await bare.messages(2)] == [(0, []), (0, [])]


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


async def test_the_last_id_is_that_of_the_topic_and_tells_the_last_index(
    cluster: Cluster, topic: str
) -> None:
    async with Bare(cluster.url) as bare:
        await bare.subscribe(topic, SUB.Shared)
        assert await last_id(bare) == (2**64 - 1, 2**64 - 1, -1)
        (place,) = await bare.publish(topic, 1)
        assert await last_id(bare) == (*place, -1)
    async with Bare(cluster.url) as bare:
        *_, place = await bare.publish(topic, 2, batch=5)
        await bare.subscribe(topic, SUB.Shared)
        assert await last_id(bare) == (*place, 4)


async def last_id(bare: Bare) -> tuple[int, int, int]:
    ask = pb.CommandGetLastMessageId(consumer_id=1, request_id=1000)
    answer = await bare.ask(ask, "GET_LAST_MESSAGE_ID_RESPONSE")
    last = answer.getLastMessageIdResponse.last_message_id
    return last.ledgerId, last.entryId, last.batch_index


async def test_a_seek_into_a_batch_delivers_the_indexes_of_its_ack_set(
    cluster: Cluster, topic: str
) -> None:
    async with Bare(cluster.url) as bare:
        places = await bare.publish(topic, 3, batch=5)
        await bare.subscribe(topic, SUB.Shared)
        bare.send(bare.flow(100))
        await bare.messages(3)
        inside = message_id(*places[1], ack_set=[0b11100])
        ask = pb.CommandSeek(consumer_id=1, request_id=1000, message_id=inside)
        assert (await bare.ask(ask, "CLOSE_CONSUMER")).HasField("close_consumer")
        assert (await bare.answer("SUCCESS")).success.request_id == 1000
        for _ in range(50):  # while the cursor is being reset
            if (await bare.subscribe(topic, SUB.Shared)).HasField("success"):
                break
            await asyncio.sleep(0.1)
        bare.send(bare.flow(100))
        assert [seen(m) for m in await bare.messages(2)] == [(0, [0b11100]), (0, [])]


async def test_sticky_ranges_own_the_keys_whose_hash_is_in_them(
    cluster: Cluster, topic: str
) -> None:
    halves = [(0, 40_000), (40_001, 65_535)]
    async with Bare(cluster.url) as first, Bare(cluster.url) as second:
        for bare, half in zip((first, second), halves, strict=True):
            assert (
                await bare.subscribe(topic, SUB.Key_Shared, keySharedMeta=sticky(half))
            ).HasField("success")
            bare.send(bare.flow(100))
        await first.produce(topic)
        keys = {}
        for number in range(20):
            key = f"key-{number}"
            metadata = pb.MessageMetadata(
                producer_name="p", sequence_id=number, publish_time=1, partition_key=key
            )
            keys[await first.store(metadata, b"")] = hashing.murmur3(key.encode()) % 65_536
        for bare, (start, end) in zip((first, second), halves, strict=True):
            expected = {place for place, slot in keys.items() if start <= slot <= end}
            got = await bare.messages(len(expected))
            assert {(m.message_id.ledgerId, m.message_id.entryId) for m in got} == expected


async def test_sticky_ranges_that_overlap_are_refused(cluster: Cluster, topic: str) -> None:
    async with Bare(cluster.url) as first, Bare(cluster.url) as second:
        await first.subscribe(topic, SUB.Key_Shared, keySharedMeta=sticky((0, 100)))
        alive = asyncio.create_task(first.message())  # it answers pings
        for ranges, name in (
            ([(100, 200)], "ConsumerAssignError"),
            ([], "ConsumerAssignError"),
            (None, "ConsumerBusy"),
        ):
            meta = pb.KeySharedMeta(keySharedMode=pb.AUTO_SPLIT)
            meta = meta if ranges is None else sticky(*ranges)
            refused = await second.subscribe(topic, SUB.Key_Shared, keySharedMeta=meta)
            assert pb.ServerError.Name(refused.error.error) == name
        alive.cancel()


def sticky(*ranges: tuple[int, int]) -> pb.KeySharedMeta:
    return pb.KeySharedMeta(
        keySharedMode=pb.STICKY,
        hashRanges=[pb.IntRange(start=start, end=end) for start, end in ranges],
    )


async def test_chunks_of_a_message_go_to_one_consumer(cluster: Cluster, topic: str) -> None:
    """Each message's chunks mixed with those of others, four consumers."""
    bares = [Bare(cluster.url) for _ in range(4)]
    async with bares[0], bares[1], bares[2], bares[3]:
        for bare in bares:
            await bare.subscribe(topic, SUB.Shared)
        await bares[0].produce(topic)
        uuids = {}
        for index in range(5):
            for message in range(12):
                metadata = pb.MessageMetadata(
                    producer_name="p",
                    sequence_id=message,
                    publish_time=1,
                    uuid=f"p-{message}",
                    num_chunks_from_msg=5,
                    chunk_id=index,
                    total_chunk_msg_size=5,
                )
                uuids[await bares[0].store(metadata, b"x")] = metadata.uuid
        for bare in bares:
            bare.send(bare.flow(60))
        owners: dict[str, set[int]] = {}
        count = 0
        for number, bare in enumerate(bares):
            for found in await bare.messages(0):
                place = found.message_id
                owners.setdefault(uuids[place.ledgerId, place.entryId], set()).add(number)
                count += 1
        assert count == 60
        assert {len(each) for each in owners.values()} == {1}
