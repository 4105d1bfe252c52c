"""Failures at a real broker during a read: the result is exact, or a named error is raised."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

import pulsar_encore as encore
from pulsar_encore.exceptions import ConsumerBusy
from pulsar_encore.spark import DataLossError, StalledError
from pulsar_encore.spark.driver import query_cursor as cursor
from pulsar_encore.spark.offsets import Position
from pulsar_encore.spark.reader.range_fetch import ReadRange
from pulsar_encore.wire import pb
from tests.harness.admin import Admin
from tests.harness.contract.frame_client import FrameClient
from tests.harness.pulsar_server import Broker, Server, own_broker

from .numbered_topics import body, publish
from .readers import Query, planned, read, rows_of, slow_read
from .test_source import wait_until

MARKER = 10  # a snapshot of a replicated subscription, which brokers do not deliver


def bodies(*numbers: int) -> list[bytes]:
    return [body(number) for number in range(*numbers)]


def values(rows: list[dict[str, Any]]) -> list[Any]:
    return [row["value"] for row in rows]


def store(server: Server, topic: str, kinds: str) -> list[tuple[int, int]]:
    """Store an entry for each letter: "x" is a message, "m" a marker."""

    async def run() -> list[tuple[int, int]]:
        async with FrameClient(server.service_url) as connection:
            made = await connection.produce(topic)
            entry_ids = []
            for number, kind in enumerate(kinds):
                metadata = pb.MessageMetadata(
                    producer_name=made.producer_success.producer_name,
                    sequence_id=number,
                    publish_time=int(time.time() * 1000),
                )
                if kind == "m":
                    metadata.marker_type = MARKER
                entry_ids.append(await connection.store_entry(metadata, body(number)))
            return entry_ids

    return asyncio.run(run())


@pytest.mark.parametrize("kinds", ["xxxmmm", "mmm", "mxmmx", "xm"])
def test_markers_anywhere_in_a_topic_are_skipped(pulsar: Server, topic: str, kinds: str) -> None:
    """With markers at the end of a topic, a broker reports for ever that more messages are
    available.
    """
    store(pulsar, topic, kinds)
    expected = [body(number) for number, kind in enumerate(kinds) if kind == "x"]
    assert values(read(pulsar, topic, pollTimeoutMs=8000)) == expected
    assert values(read(pulsar, topic, pollTimeoutMs=8000, minPartitions=3)) == expected
    query = Query(pulsar, topic, startingOffsets="earliest", subscription="s", pollTimeoutMs=8000)
    assert query.run() == expected
    query.stop()


def test_a_query_on_a_subscription_in_use_names_the_consumer(
    pulsar: Server, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursor, "_BUSY_TIMEOUT_S", 0.1)
    publish(pulsar, topic, range(1))

    async def hold() -> None:
        async with encore.Client(pulsar.service_url) as client:
            await client.subscribe(topic, "s", consumer_name="worker-7")
            once = {"subscription": "s", "fetchOffset__numRetries": 0}
            with pytest.raises(ConsumerBusy, match=r"'worker-7' at 127\.0\.0\.1:\d+ since \d"):
                await asyncio.to_thread(lambda: Query(pulsar, topic, **once).run())

    asyncio.run(hold())


def test_markers_at_the_end_of_a_closed_ledger_are_skipped(
    pulsar: Server, admin: Admin, topic: str
) -> None:
    entry_ids = store(pulsar, topic, "xxmm")
    reader, [whole] = planned(pulsar, topic, pollTimeoutMs=8000)
    admin.create_subscription(topic, "keep")
    admin.unload(topic)
    assert values(rows_of(reader, [whole])) == bodies(2)
    assert whole.end.entry_key == entry_ids[-1]
    publish(pulsar, topic, [7])
    assert values(rows_of(reader, [whole])) == bodies(2)


def expire(admin: Admin, topic: str, subscription: str = "") -> None:
    """Expire messages older than one second, as the broker does for a time-to-live every few
    minutes.
    """
    path = topic.replace("persistent://", "/persistent/")
    which = f"subscription/{subscription}" if subscription else "all_subscription"
    admin.call("POST", f"{path}/{which}/expireMessages/1")


def test_messages_that_expire_during_a_read_are_read(
    pulsar: Server, admin: Admin, topic: str
) -> None:
    publish(pulsar, topic, range(300))
    admin.create_subscription(topic, "keep")
    with slow_read(pulsar, topic) as batches:
        found = next(batches)
        time.sleep(2)
        expire(admin, topic)
        # Every cursor moves past the stored messages, including the reader's cursor.
        wait_until(
            lambda: all(
                each["markDeletePosition"].endswith(":299")
                for each in admin.internal_stats(topic)["cursors"].values()
            ),
            "all expired",
        )
        found += [value for batch in batches for value in batch]
    assert found == bodies(300)


def trim_first_ledger(pulsar: Server, admin: Admin, topic: str, *, expiring: bool) -> None:
    """Close the first ledger and have it deleted. With `expiring`, it contains the messages 10 to
    20.
    """
    if expiring:
        publish(pulsar, topic, range(10, 20))
    admin.unload(topic)
    publish(pulsar, topic, range(20, 25))
    if expiring:
        time.sleep(2)
        expire(admin, topic, "s")
        wait_until(
            lambda: admin.subscription_stats(topic, "s")["msgBacklog"] == 0,
            "the subscription moved",
        )
        publish(pulsar, topic, range(25, 30))
    admin.trim(topic)
    wait_until(lambda: len(admin.internal_stats(topic)["ledgers"]) == 1, "the first ledger trimmed")


@pytest.mark.parametrize("admin_api", [True, False])
@pytest.mark.parametrize("restart", [True, False])
@pytest.mark.parametrize("expiring", [True, False])
def test_a_trimmed_first_ledger_is_data_loss_only_with_unread_messages(
    pulsar: Server, admin: Admin, topic: str, expiring: bool, restart: bool, admin_api: bool
) -> None:
    """A ledger that was read to its end is no loss. Expired messages are a loss, for a running
    query too.
    """
    publish(pulsar, topic, range(10))
    options: dict[str, Any] = {"startingOffsets": "earliest", "subscription": "s"}
    options["admin_url"] = admin_api
    query = Query(pulsar, topic, **options)
    assert query.run() == bodies(10)
    assert query.run() == []  # this acks the messages
    if restart:
        query.stop()
    trim_first_ledger(pulsar, admin, topic, expiring=expiring)
    if restart:
        query = Query(pulsar, topic, query.offset, **options)
    if expiring:
        with pytest.raises(DataLossError, match=r"messages after .* are gone|ledger \d+ is gone"):
            query.run()
    else:
        assert query.run() == bodies(20, 25)
    query.stop()


def test_expired_messages_that_are_still_stored_are_read(
    pulsar: Server, admin: Admin, topic: str
) -> None:
    """The checkpoint determines where to read, not the subscription."""
    publish(pulsar, topic, range(10))
    options: dict[str, Any] = {"startingOffsets": "earliest", "subscription": "s"}
    query = Query(pulsar, topic, **options)
    assert query.run() == bodies(10)
    query.stop()
    publish(pulsar, topic, range(10, 20))
    time.sleep(2)
    expire(admin, topic, "s")
    wait_until(
        lambda: admin.subscription_stats(topic, "s")["msgBacklog"] == 0, "the subscription moved"
    )
    query = Query(pulsar, topic, query.offset, **options)
    assert query.run() == bodies(10, 20)
    query.stop()


def test_ledgers_trimmed_between_plan_and_read_raise_data_loss(
    pulsar: Server, admin: Admin, topic: str
) -> None:
    publish(pulsar, topic, range(10))
    admin.create_subscription(topic, "keep")
    admin.unload(topic)
    publish(pulsar, topic, range(10, 20))
    reader, [whole] = planned(pulsar, topic)
    allowing, _ = planned(pulsar, topic, failOnDataLoss="false")
    assert values(rows_of(reader, [whole])) == bodies(20)
    admin.skip_all(topic, "keep")
    admin.trim(topic)
    wait_until(lambda: len(admin.internal_stats(topic)["ledgers"]) == 1, "the first ledger trimmed")
    with pytest.raises(DataLossError, match=r"ledger \d+ is gone"):
        rows_of(reader, [whole])
    assert values(rows_of(allowing, [whole])) == bodies(10, 20)


@pytest.mark.parametrize("admin_api", [True, False])
def test_ledgers_trimmed_before_a_batch_is_repeated_raise_data_loss(
    pulsar: Server, admin: Admin, topic: str, admin_api: bool
) -> None:
    publish(pulsar, topic, range(10))
    options: dict[str, Any] = {"startingOffsets": "earliest", "admin_url": admin_api}
    query = Query(pulsar, topic, maxEntriesPerTrigger=5, **options)
    begin = query.reader.latestOffset(query.offset, query.reader.getDefaultReadLimit())
    admin.create_subscription(topic, "keep")
    admin.unload(topic)
    publish(pulsar, topic, range(10, 20))
    again = Query(pulsar, topic, begin, **options)
    end = again.reader.latestOffset(begin, again.reader.getDefaultReadLimit())
    admin.skip_all(topic, "keep")
    admin.trim(topic)
    wait_until(lambda: len(admin.internal_stats(topic)["ledgers"]) == 1, "the first ledger trimmed")
    # Spark's first call after a crash, before any other call.
    reader = Query(pulsar, topic, begin, **options).reader
    with pytest.raises(DataLossError, match=r"messages after .* are gone|ledger \d+ is gone"):
        rows_of(reader, reader.partitions(begin, end))
    allowing = Query(pulsar, topic, begin, failOnDataLoss="false", **options).reader
    assert values(rows_of(allowing, allowing.partitions(begin, end))) == bodies(10, 20)


@pytest.mark.parametrize("admin_api", [True, False])
def test_a_batch_that_begins_in_a_trimmed_ledger_raises_data_loss(
    pulsar: Server, admin: Admin, topic: str, admin_api: bool
) -> None:
    sent = publish(pulsar, topic, range(10))
    admin.create_subscription(topic, "keep")
    admin.unload(topic)
    publish(pulsar, topic, range(10, 20))
    options = {
        "startingOffsets": json.dumps({topic: f"{sent[3].ledger_id()}:3"}),
        "admin_url": admin_api,
    }
    assert values(read(pulsar, topic, **options)) == bodies(3, 20)
    admin.skip_all(topic, "keep")
    admin.trim(topic)
    wait_until(lambda: len(admin.internal_stats(topic)["ledgers"]) == 1, "the first ledger trimmed")
    with pytest.raises(DataLossError, match=r"messages after .* are gone|ledger \d+ is gone"):
        read(pulsar, topic, **options)
    assert values(read(pulsar, topic, failOnDataLoss="false", **options)) == bodies(10, 20)


@pytest.mark.parametrize("admin_api", [True, False])
def test_the_backlog_of_an_existing_subscription_is_read(
    pulsar: Server, admin: Admin, topic: str, admin_api: bool
) -> None:
    """This includes a subscription without any acks, although a new one would begin later."""
    publish(pulsar, topic, range(10))
    admin.create_subscription(topic, "s")
    publish(pulsar, topic, range(10, 20))
    options: dict[str, Any] = {
        "startingTime": int(time.time() * 1000) + 60_000,
        "admin_url": admin_api,
    }
    options["startingOffsetsByTimestampStrategy"] = "latest"
    query = Query(pulsar, topic, subscription="s", **options)
    assert query.run() == bodies(20)
    query.stop()
    query = Query(pulsar, topic, subscription="new", **options)
    publish(pulsar, topic, range(20, 25))
    assert query.run() == bodies(20, 25)
    query.stop()


@pytest.mark.parametrize("admin_api", [True, False])
def test_a_topic_recreated_between_plan_and_read_raises_data_loss(
    pulsar: Server, admin: Admin, topic: str, admin_api: bool
) -> None:
    sent = publish(pulsar, topic, range(10))
    reader, [whole] = planned(pulsar, topic, admin_url=admin_api)
    position = Position(sent[3].ledger_id(), sent[3].entry_id())
    admin.delete_topic(topic)
    publish(pulsar, topic, range(50, 60))
    with pytest.raises(DataLossError, match="deleted and created again"):
        rows_of(reader, [ReadRange(topic, -1, position, whole.end)])


def test_unloads_during_a_read_lose_no_message(pulsar: Server, admin: Admin, topic: str) -> None:
    publish(pulsar, topic, range(400), batch=5)
    with slow_read(pulsar, topic) as batches:
        found = next(batches)
        for number, batch in enumerate(batches):
            found += batch
            if number in (0, 5, 12):
                admin.unload(topic)
    assert found == bodies(400)


def publish_compacted(pulsar: Server, admin: Admin, topic: str) -> None:
    """Publish twenty keys five times, delete the last two keys, and compact the topic."""

    async def send() -> None:
        async with encore.Client(pulsar.service_url) as client:
            producer = await client.create_producer(topic, batching_enabled=False)
            rounds = [(key, b"%d-%d" % (key, n)) for n in range(5) for key in range(20)]
            for key, value in [*rounds, (18, None), (19, None)]:
                await producer.send(value, partition_key=f"k{key}")

    asyncio.run(send())
    admin.create_subscription(topic, "keep")
    path = topic.replace("persistent://", "/persistent/") + "/compaction"
    admin.call("PUT", path)
    wait_until(lambda: admin.call("GET", path)["status"] == "SUCCESS", "compacted")
    wait_until(lambda: admin.internal_stats(topic)["compactedLedger"]["entries"] > 0, "its ledger")


def test_a_compacted_topic_is_read_in_full_or_compacted(
    pulsar: Server, admin: Admin, topic: str
) -> None:
    """Limits count the stored entries, not those left after compaction."""
    publish_compacted(pulsar, admin, topic)
    last = [b"%d-4" % key for key in range(18)]
    for options in ({}, {"minPartitions": 3}):
        whole = values(read(pulsar, topic, pollTimeoutMs=8000, **options))
        assert len(whole) == 102
        assert whole[-3:] == [b"19-4", None, None]
        kept = read(
            pulsar, topic, pollTimeoutMs=8000, pulsar__reader__readCompacted="true", **options
        )
        assert values(kept) == last
    for option, sizes in (("false", [30, 30, 30, 12]), ("true", [0, 0, 10, 8])):
        query = Query(
            pulsar,
            topic,
            startingOffsets="earliest",
            maxEntriesPerTrigger=30,
            pollTimeoutMs=8000,
            pulsar__reader__readCompacted=option,
        )
        assert len(query.run()) == sum(sizes)
        assert query.sizes == sizes


class Memory:
    """The largest growth of this process, in bytes. A context manager."""

    def __enter__(self) -> Memory:
        self._process = psutil.Process()
        self._before = self._process.memory_info().rss
        self.largest = 0
        return self

    def poll(self) -> None:
        self.largest = max(self.largest, self._process.memory_info().rss - self._before)

    def __exit__(self, *_: object) -> None:
        self.poll()


def send_large(server: Server, topic: str, sizes: Iterator[int]) -> None:
    async def send() -> None:
        async with encore.Client(server.service_url) as client:
            producer = await client.create_producer(
                topic, batching_enabled=False, chunking_enabled=True
            )
            for number, size in enumerate(sizes):
                await producer.send(bytes([number]) * size)

    asyncio.run(send())


@pytest.mark.parametrize(("size", "count"), [(5_000_000, 40), (12_000_000, 16)])
def test_large_and_chunked_messages_are_read_in_bounded_memory(
    pulsar: Server, topic: str, size: int, count: int
) -> None:
    """Messages are near the broker's 5 MiB, or chunked. A task holds a part of them at a time."""
    send_large(pulsar, topic, (size for _ in range(count)))
    reader, ranges = planned(pulsar, topic, minPartitions=2)
    found: list[tuple[int, int, int]] = []
    with Memory() as memory:
        for each in ranges:
            for batch in reader.read(each):
                for value in batch.column("value"):
                    data = value.as_py()
                    found.append((data[0], data[-1], len(data)))
                memory.poll()
    assert found == [(number, number, size) for number in range(count)]
    assert memory.largest < 0.75 * size * count, f"{memory.largest / 1e6:.0f} MB"


@pytest.fixture
def own_pulsar() -> Iterator[Broker]:
    """A broker of this test, to kill. It is a standalone process only, because a start takes
    long.
    """
    with own_broker("standalone") as broker:
        yield broker


def test_a_broker_outage_raises_errors_in_time_and_the_query_can_continue(
    own_pulsar: Broker, topic: str
) -> None:
    """The outage is at the start, between batches, and during the read of a range."""
    broker = own_pulsar
    server = Server(service_url=broker.service_url, admin_url=broker.admin_url, origin="standalone")
    short_timeouts = {
        "pulsar__client__operationTimeoutMs": 2000,
        "pulsar__client__connectionTimeoutMs": 1000,
        "fetchOffset__numRetries": 1,
        "fetchOffset__retryIntervalMs": 100,
        "pollTimeoutMs": 3000,
    }
    publish(server, topic, range(300))
    Admin(server.admin_url).create_subscription(topic, "keep")
    query = Query(server, topic, startingOffsets="earliest", subscription="s", **short_timeouts)
    assert query.run() == bodies(300)
    with slow_read(server, topic, **short_timeouts) as batches:
        next(batches)
        broker.kill()
        began = time.monotonic()
        with pytest.raises((StalledError, encore.TransportError)) as error:
            list(batches)
        assert time.monotonic() - began < 60
        assert topic in str(error.value)
    with pytest.raises(encore.TransportError):
        query.run()
    with pytest.raises(encore.TransportError) as refused:
        read(server, topic, **short_timeouts)
    assert str(broker.service_url).rpartition(":")[2] in str(refused.value)
    query.stop()
    broker.start()
    publish(server, topic, range(300, 310))
    query = Query(server, topic, query.offset, subscription="s", **short_timeouts)
    assert query.run() == bodies(300, 310)
    assert values(read(server, topic, **short_timeouts)) == bodies(310)
    query.stop()


def test_offsets_by_id_can_be_at_entries_removed_by_compaction(
    pulsar: Server, admin: Admin, topic: str
) -> None:
    publish_compacted(pulsar, admin, topic)
    ledger = admin.internal_stats(topic)["ledgers"][0]["ledgerId"]
    ends = {
        "startingOffsets": json.dumps({topic: f"{ledger}:3"}),
        "endingOffsets": json.dumps({topic: f"{ledger}:90"}),
    }
    assert len(read(pulsar, topic, **ends)) == 88
    kept = read(pulsar, topic, pulsar__reader__readCompacted="true", **ends)
    assert values(kept) == [b"%d-4" % key for key in range(11)]
