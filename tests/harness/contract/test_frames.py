"""Behaviour of a broker that no client shows: reads, permits and names, frame by frame."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from pulsar_encore.wire import key_hashes as hashing
from pulsar_encore.wire import message_id, pb

from .cluster import Cluster
from .frame_client import FrameClient

SUB = pb.CommandSubscribe
BACKLOG = 2000


class Rewinding:
    """An Exclusive consumer of a backlog that is rewound without any acks.

    Args:
        entry_ids: (ledger, entry) of each entry.
    """

    def __init__(self, connection: FrameClient, entry_ids: list[tuple[int, int]]) -> None:
        self._connection = connection
        self._numbers = {entry_id: number for number, entry_id in enumerate(entry_ids)}
        self._epoch = 0

    async def rewind(self, *, flow: int) -> list[int]:
        """Send FLOW and REDELIVER. Return the numbers of the messages that follow, up to the last
        one.
        """
        connection = self._connection
        self._epoch += 1
        before = [connection.flow(flow)] if flow else []
        connection.send(*before, connection.redeliver(epoch=self._epoch), connection.flow(BACKLOG))
        numbers: list[int] = []
        while not numbers or numbers[-1] < BACKLOG - 1:
            message = await connection.message()
            if message.consumer_epoch == self._epoch:
                entry_id = message.message_id
                numbers.append(self._numbers[entry_id.ledgerId, entry_id.entryId])
        return numbers


async def test_a_rewind_restarts_at_the_lowest_entry_and_a_second_rewind_fills_a_gap(
    cluster: Cluster, topic: str
) -> None:
    async with FrameClient(cluster.url) as connection:
        rewinding = Rewinding(connection, await connection.publish(topic, BACKLOG))
        await connection.subscribe(topic, SUB.Exclusive, consumer_epoch=0)
        connection.send(connection.flow(1500))
        for _ in range(1000):
            await connection.message()
        # Permits are outstanding, so a read is pending. Its entries may be skipped, so one gap is
        # allowed.
        numbers = await rewinding.rewind(flow=300)
        assert numbers[0] == 0
        assert numbers == sorted(set(numbers))
        assert len([1 for a, b in pairwise(numbers) if b != a + 1]) <= 1
        # Everything was read, so no read is pending and nothing is skipped.
        assert await rewinding.rewind(flow=0) == list(range(BACKLOG))


@pytest.mark.parametrize(
    ("kind", "entries"), [(SUB.Exclusive, 20), (SUB.Key_Shared, 20), (SUB.Shared, 2)]
)
async def test_permits_count_entries_within_one_read_but_not_on_shared(
    cluster: Cluster, topic: str, kind: int, entries: int
) -> None:
    async with FrameClient(cluster.url) as connection:
        await connection.publish(topic, 50, batch=10)
        await connection.subscribe(topic, kind)
        for permits in (20, entries * 10):
            connection.send(connection.flow(permits))
            assert len(await connection.messages(entries)) == entries


@pytest.mark.parametrize("kind", [SUB.Exclusive, SUB.Failover, SUB.Shared, SUB.Key_Shared])
async def test_an_unload_resets_partial_acks_and_counts_at_the_broker(
    cluster: Cluster, topic: str, kind: int
) -> None:
    async with FrameClient(cluster.url) as connection:
        entry_ids = await connection.publish(topic, 2, batch=4)
        await connection.subscribe(topic, kind)
        connection.send(connection.flow(100))
        assert [count_and_ack_set(m) for m in await connection.messages(2)] == [(0, []), (0, [])]
        connection.send(
            connection.redeliver(entry_ids[:1]), connection.ack_part(entry_ids[1], 0b1100)
        )
        # Exclusive and Failover rewind, do not count, and send the ack set of a partly acked batch.
        shares = kind in (SUB.Shared, SUB.Key_Shared)
        again = await connection.messages(1 if shares else 2)
        assert [count_and_ack_set(m) for m in again[:1]] == [(1, []) if shares else (0, [])]
        connection.send(connection.redeliver(entry_ids))
        expected = [(2, []), (1, [12])] if shares else [(0, []), (0, [12])]
        assert [count_and_ack_set(m) for m in await connection.messages(2)] == expected
        await cluster.unload(topic)
        assert (await connection.answer("CLOSE_CONSUMER")).HasField("close_consumer")
    async with FrameClient(cluster.url) as connection:
        for _ in range(50):  # while the topic is being loaded
            if (await connection.subscribe(topic, kind)).HasField("success"):
                break
            await asyncio.sleep(0.1)
        connection.send(connection.flow(100))
        assert [count_and_ack_set(m) for m in await connection.messages(2)] == [(0, []), (0, [])]


def count_and_ack_set(message: pb.CommandMessage) -> tuple[int, list[int]]:
    """Return the redelivery count and the ack set."""
    return message.redelivery_count, list(message.ack_set)


async def test_a_partition_of_a_topic_without_partitions_is_refused(
    cluster: Cluster, topic: str
) -> None:
    async with FrameClient(cluster.url) as connection:
        for end in ("-partition-0", "-partition-17"):
            for refused in (
                await connection.subscribe(topic + end, SUB.Shared),
                await connection.produce(topic + end),
            ):
                assert pb.ServerError.Name(refused.error.error) == "NotAllowedError"
        await cluster.create_partitioned_topic(topic, 1)
        assert (await connection.subscribe(f"{topic}-partition-0", SUB.Shared)).HasField("success")


@pytest.mark.parametrize("end", ["-partition-", "-partition-a", "-partition-07"])
async def test_a_name_without_a_valid_partition_number_is_a_topic(
    cluster: Cluster, topic: str, end: str
) -> None:
    async with FrameClient(cluster.url) as connection:
        assert (await connection.subscribe(topic + end, SUB.Shared)).HasField("success")


async def test_the_last_id_of_a_topic_includes_the_last_batch_index(
    cluster: Cluster, topic: str
) -> None:
    async with FrameClient(cluster.url) as connection:
        await connection.subscribe(topic, SUB.Shared)
        assert await last_id(connection) == (2**64 - 1, 2**64 - 1, -1)
        (entry_id,) = await connection.publish(topic, 1)
        assert await last_id(connection) == (*entry_id, -1)
    async with FrameClient(cluster.url) as connection:
        *_, entry_id = await connection.publish(topic, 2, batch=5)
        await connection.subscribe(topic, SUB.Shared)
        assert await last_id(connection) == (*entry_id, 4)


async def last_id(connection: FrameClient) -> tuple[int, int, int]:
    request = pb.CommandGetLastMessageId(consumer_id=1, request_id=1000)
    answer = await connection.request(request, "GET_LAST_MESSAGE_ID_RESPONSE")
    last = answer.getLastMessageIdResponse.last_message_id
    return last.ledgerId, last.entryId, last.batch_index


async def test_a_seek_into_a_batch_delivers_the_indexes_of_its_ack_set(
    cluster: Cluster, topic: str
) -> None:
    async with FrameClient(cluster.url) as connection:
        entry_ids = await connection.publish(topic, 3, batch=5)
        await connection.subscribe(topic, SUB.Shared)
        connection.send(connection.flow(100))
        await connection.messages(3)
        inside = message_id(*entry_ids[1], ack_set=[0b11100])
        request = pb.CommandSeek(consumer_id=1, request_id=1000, message_id=inside)
        assert (await connection.request(request, "CLOSE_CONSUMER")).HasField("close_consumer")
        assert (await connection.answer("SUCCESS")).success.request_id == 1000
        for _ in range(50):  # while the cursor is being reset
            if (await connection.subscribe(topic, SUB.Shared)).HasField("success"):
                break
            await asyncio.sleep(0.1)
        connection.send(connection.flow(100))
        assert [count_and_ack_set(m) for m in await connection.messages(2)] == [
            (0, [0b11100]),
            (0, []),
        ]


async def test_sticky_ranges_receive_the_keys_that_hash_into_them(
    cluster: Cluster, topic: str
) -> None:
    halves = [(0, 40_000), (40_001, 65_535)]
    async with FrameClient(cluster.url) as first, FrameClient(cluster.url) as second:
        for connection, half in zip((first, second), halves, strict=True):
            assert (
                await connection.subscribe(topic, SUB.Key_Shared, keySharedMeta=sticky(half))
            ).HasField("success")
            connection.send(connection.flow(100))
        await first.produce(topic)
        keys = {}
        for number in range(20):
            key = f"key-{number}"
            metadata = pb.MessageMetadata(
                producer_name="p", sequence_id=number, publish_time=1, partition_key=key
            )
            keys[await first.store_entry(metadata, b"")] = hashing.murmur3(key.encode()) % 65_536
        for connection, (start, end) in zip((first, second), halves, strict=True):
            expected = {entry_id for entry_id, slot in keys.items() if start <= slot <= end}
            got = await connection.messages(len(expected))
            assert {(m.message_id.ledgerId, m.message_id.entryId) for m in got} == expected


async def test_overlapping_sticky_ranges_are_refused(cluster: Cluster, topic: str) -> None:
    async with FrameClient(cluster.url) as first, FrameClient(cluster.url) as second:
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


async def test_all_chunks_of_a_message_go_to_one_consumer(cluster: Cluster, topic: str) -> None:
    """The chunks of several messages interleave, and there are four consumers."""
    connections = [FrameClient(cluster.url) for _ in range(4)]
    async with connections[0], connections[1], connections[2], connections[3]:
        for connection in connections:
            await connection.subscribe(topic, SUB.Shared)
        await connections[0].produce(topic)
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
                uuids[await connections[0].store_entry(metadata, b"x")] = metadata.uuid
        for connection in connections:
            connection.send(connection.flow(60))
        owners: dict[str, set[int]] = {}
        count = 0
        for number, connection in enumerate(connections):
            for found in await connection.messages(0):
                entry_id = found.message_id
                owners.setdefault(uuids[entry_id.ledgerId, entry_id.entryId], set()).add(number)
                count += 1
        assert count == 60
        assert {len(each) for each in owners.values()} == {1}
