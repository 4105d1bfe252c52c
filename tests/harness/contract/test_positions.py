"""Seek, readers and last message ids."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

import pulsar_encore as encore
from pulsar_encore import MessageId
from pulsar_encore.options import Subscription
from pulsar_encore.transport.interface import AckPlan, Transport

from .cluster import Cluster, Engine
from .contract_kit import before_marker, bodies, data, publish, subscribe, take
from .recording_listener import Recording, record

Exclusive, Shared = encore.ConsumerType.Exclusive, encore.ConsumerType.Shared


@pytest.mark.parametrize("kind", [Exclusive, Shared])
@pytest.mark.parametrize("batch", [0, 4])
@pytest.mark.parametrize("inclusive", [False, True])
async def test_a_seek_to_an_id_includes_the_message_if_inclusive(
    client: encore.Client, topic: str, kind: encore.ConsumerType, batch: int, inclusive: bool
) -> None:
    sent = bodies(12)
    ids = await publish(client, topic, sent, batch=batch)
    consumer = await subscribe(client, topic, kind, start_message_id_inclusive=inclusive)
    await consumer.acknowledge(await take(consumer, 12))
    expected = sent[6:] if inclusive else sent[7:]
    await consumer.seek(ids[6])
    again = await take(consumer, len(expected))
    assert data(again) == expected
    await consumer.acknowledge(again)
    assert await before_marker(client, topic, consumer) == []


async def test_a_seek_to_a_time_delivers_later_messages(client: encore.Client, topic: str) -> None:
    sent = bodies(6)
    await publish(client, topic, sent[:3])
    await asyncio.sleep(0.03)
    between = int(time.time() * 1000)
    await asyncio.sleep(0.01)
    await publish(client, topic, sent[3:])
    consumer = await subscribe(client, topic)
    await take(consumer, 6)
    await consumer.seek(between)
    assert data(await take(consumer, 3)) == sent[3:]
    await consumer.seek(int(time.time() * 1000) + 60_000)
    assert await before_marker(client, topic, consumer) == []


async def test_a_seek_to_earliest_or_latest_delivers_all_or_none(
    client: encore.Client, topic: str
) -> None:
    sent = bodies(5)
    await publish(client, topic, sent)
    consumer = await subscribe(client, topic)
    await consumer.acknowledge(await take(consumer, 5))
    await consumer.seek(MessageId.earliest)
    assert data(await take(consumer, 5)) == sent
    await consumer.seek(MessageId.latest)
    assert await before_marker(client, topic, consumer) == []


async def test_a_seek_cancels_pending_nacks(client: encore.Client, topic: str) -> None:
    ids = await publish(client, topic, bodies(4))
    consumer = await subscribe(client, topic, start_message_id_inclusive=True)
    for message in await take(consumer, 4):
        await consumer.negative_acknowledge(message, delay=0.3)
    await consumer.seek(ids[2])
    again = await take(consumer, 2)
    assert data(again) == bodies(2, start=2)
    await consumer.acknowledge(again)
    await asyncio.sleep(0.5)  # past the old nacks
    assert await before_marker(client, topic, consumer) == []


async def test_acks_made_before_a_seek_do_not_ack_after_it(
    client: encore.Client, topic: str
) -> None:
    """The offsets vary the time of the seek between two flushes of the C++ client's grouped
    acks.
    """
    sent = bodies(3)
    ids = await publish(client, topic, sent)
    consumer = await subscribe(client, topic, start_message_id_inclusive=True)
    for offset in range(5):
        got = await take(consumer, 3, timeout=3)
        assert data(got) == sent
        await asyncio.sleep(offset * 0.02)
        await consumer.acknowledge(got)
        await consumer.seek(ids[0])


async def test_the_last_message_id_is_the_id_of_the_last_message_sent(
    client: encore.Client, topic: str
) -> None:
    ids = await publish(client, topic, bodies(6), batch=3)
    consumer = await subscribe(client, topic)
    assert await consumer.get_last_message_id() == ids[-1]


@pytest.mark.parametrize("batch", [0, 3])
async def test_a_reader_reads_from_its_position(
    client: encore.Client, topic: str, batch: int
) -> None:
    sent = bodies(9)
    ids = await publish(client, topic, sent, batch=batch)
    for start, inclusive, expected in (
        (MessageId.earliest, False, sent),
        (ids[4], False, sent[5:]),
        (ids[4], True, sent[4:]),
    ):
        async with await client.create_reader(
            topic, start, start_message_id_inclusive=inclusive
        ) as reader:
            got = [await reader.read_next(timeout_millis=15_000) for _ in expected]
            assert data(got) == expected
            assert not await reader.has_message_available()


@pytest.mark.parametrize("batch", [0, 3])
async def test_an_inclusive_latest_reader_begins_with_the_last_message(
    client: encore.Client, topic: str, batch: int
) -> None:
    sent = bodies(9)
    await publish(client, topic, sent, batch=batch)
    async with await client.create_reader(
        topic, MessageId.latest, start_message_id_inclusive=True
    ) as reader:
        assert await reader.has_message_available()
        await publish(client, topic, [b"new"])
        got = [await reader.read_next(timeout_millis=15_000) for _ in range(2)]
        assert data(got) == [sent[-1], b"new"]
        assert not await reader.has_message_available()


async def test_an_inclusive_latest_reader_on_an_empty_topic_begins_with_the_next_message(
    cluster: Cluster, client: encore.Client, topic: str
) -> None:
    await cluster.create_topic(topic)
    async with await client.create_reader(
        topic, MessageId.latest, start_message_id_inclusive=True
    ) as reader:
        assert not await reader.has_message_available()
        await publish(client, topic, [b"a", b"b"])
        got = [await reader.read_next(timeout_millis=15_000) for _ in range(2)]
        assert data(got) == [b"a", b"b"]


async def test_an_inclusive_latest_reader_loses_and_repeats_no_concurrent_message(
    client: encore.Client, topic: str
) -> None:
    await publish(client, topic, bodies(1))

    async def keep_publishing() -> None:
        async with await client.create_producer(topic) as producer:
            for number in itertools.count(1):
                await producer.send(b"%05d" % number)

    publish_task = asyncio.create_task(keep_publishing())
    try:
        for _ in range(3):
            async with await client.create_reader(
                topic, MessageId.latest, start_message_id_inclusive=True
            ) as reader:
                got = [await reader.read_next(timeout_millis=15_000) for _ in range(20)]
            assert data(got) == bodies(20, start=int(got[0].data()))
    finally:
        publish_task.cancel()
        await asyncio.gather(publish_task, return_exceptions=True)


async def test_a_latest_reader_reads_new_messages(client: encore.Client, topic: str) -> None:
    await publish(client, topic, bodies(2))
    async with await client.create_reader(topic, MessageId.latest) as reader:
        assert not await reader.has_message_available()
        with pytest.raises(encore.ReceiveTimeout):
            await reader.read_next(timeout_millis=50)
        await publish(client, topic, [b"new"])
        assert (await reader.read_next(timeout_millis=15_000)).data() == b"new"


@pytest.mark.parametrize("batch", [0, 4])
async def test_a_reader_reads_entry_by_entry(
    client: encore.Client, engine: Engine, topic: str, batch: int
) -> None:
    sent = bodies(12)
    ids = await publish(client, topic, sent, batch=batch)
    async with await client.create_reader(topic, ids[1]) as reader:
        [first] = [await reader.read_next(15_000)]
        entries = [[first]]
        while sum(map(len, entries)) < 10:
            entries.append(await reader.read_entry(15_000))
        assert data(each for entry in entries for each in entry) == sent[2:]
        assert [each.message_id() for entry in entries for each in entry] == ids[2:]
        for entry in entries:
            assert len({each.message_id().entry_id() for each in entry}) == 1
        if engine.whole_entries:
            assert [len(each) for each in entries] == ([1, 1, 4, 4] if batch else [1] * 10)
        with pytest.raises(encore.ReceiveTimeout):
            await reader.read_entry(timeout=0.05)


@pytest.mark.parametrize("batch", [0, 3])
async def test_a_reader_returns_the_last_id_or_raises_not_supported(
    client: encore.Client, engine: Engine, topic: str, batch: int
) -> None:
    ids = await publish(client, topic, bodies(6), batch=batch)
    async with await client.create_reader(topic, MessageId.earliest) as reader:
        if engine.last_id_of_readers:
            assert await reader.last_message_id() == ids[-1]
        else:
            with pytest.raises(encore.NotSupportedError, match="get_last_message_id"):
                await reader.last_message_id()


async def test_a_reader_can_seek(client: encore.Client, topic: str) -> None:
    sent = bodies(6)
    ids = await publish(client, topic, sent)
    async with await client.create_reader(
        topic, MessageId.earliest, start_message_id_inclusive=True
    ) as reader:
        assert data([await reader.read_next(15_000) for _ in sent]) == sent
        await reader.seek(ids[3])
        assert data([await reader.read_next(15_000) for _ in range(3)]) == sent[3:]


async def test_a_reader_continues_after_an_unload(
    client: encore.Client, cluster: Cluster, topic: str
) -> None:
    sent = bodies(8)
    await publish(client, topic, sent)
    async with await client.create_reader(topic, MessageId.earliest) as reader:
        got = [await reader.read_next(15_000) for _ in range(3)]
        await cluster.unload(topic)
        got += [await reader.read_next(15_000) for _ in range(5)]
        assert data(got) == sent


async def test_the_acked_position_is_known_on_the_native_transport(
    client: encore.Client, transport: Transport, engine: Engine, topic: str
) -> None:
    """The position up to which all messages are acked: none for a new subscription, and the acked
    one after reopening.
    """
    ids = await publish(client, topic, bodies(4))
    recording = await record(transport, topic, Exclusive)
    consumer = recording.consumer
    if engine.name == "stock":
        assert await consumer.acked_position() is None
        await consumer.close()
        return
    begin = await consumer.acked_position()
    assert begin is not None
    assert begin.entry_id() == -1
    await recording.next(4)
    receipt = consumer.ack(AckPlan(0, (ids[2].ledger_id(), ids[2].entry_id(), 0, -1), [], []))
    assert receipt is not None
    await receipt
    await consumer.close()
    again = (await record(transport, topic, Exclusive)).consumer
    assert await again.acked_position() == ids[2]
    await again.close()


async def test_a_reader_reports_entries_without_a_message(
    client: encore.Client, transport: Transport, engine: Engine, topic: str
) -> None:
    if not engine.whole_entries:
        return  # a transport that does not see entries reports none
    await publish(client, topic, bodies(1))
    big = bytes(6 * 1024 * 1024)
    async with await client.create_producer(
        topic, batching_enabled=False, chunking_enabled=True
    ) as producer:
        chunked = await producer.send(big)
    first = chunked.first_chunk
    assert first is not None
    for start, sizes, skipped in (
        (MessageId.earliest, [5, len(big)], [(first.entry_id(), "CHUNK")]),
        (first, [], [(chunked.entry_id(), "INCOMPLETE")]),
    ):
        consumer = await transport.subscribe(
            Subscription(
                topics=(topic,),
                subscription_name="reader",
                durable=False,
                start_message_id=start,
            )
        )
        recording = Recording(consumer)
        found = await recording.next(len(sizes))
        await recording.wait_for_skipped(len(skipped))
        assert [len(body) for body, _ in found] == sizes
        assert [(entry, why) for _, entry, why in recording.skipped[: len(skipped)]] == skipped
        await consumer.close()
