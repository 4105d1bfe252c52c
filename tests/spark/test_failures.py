"""Failures between the plan of a read and its last row, on the development broker."""

from __future__ import annotations

import pickle
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from failing_kit import MADE, expire, hidden, pass_time, slow_read
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType
from reader_kit import TOPIC, Stream, numbered, publish, read_batch, read_ranges, source

import pulsar_encore as encore
from pulsar_encore.devbroker import BrokerSettings, BrokerThread
from pulsar_encore.devbroker.rules.credentials import Credential
from pulsar_encore.exceptions import AuthenticationError
from pulsar_encore.spark import DataLossError, StalledError
from pulsar_encore.spark.offsets import EARLIEST, Position
from pulsar_encore.spark.reader.range_fetch import ReadRange

HURRIED = {
    "pulsar__client__operationTimeoutMs": 1000,
    "pulsar__client__connectionTimeoutMs": 300,
    "fetchOffset__numRetries": 1,
    "fetchOffset__retryIntervalMs": 10,
    "pollTimeoutMs": 1000,
}


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    with BrokerThread(BrokerSettings(keep_acked=True)) as started:
        yield started


@pytest.fixture
def url(broker: BrokerThread) -> str:
    return broker.url


def values(rows: list[dict[str, Any]]) -> list[bytes]:
    return [row["value"] for row in rows]


def planned(url: str, **options: Any) -> tuple[Any, list[Any]]:
    """Return a reader and its ranges."""
    made = source(url, **options)
    reader = made.reader(made.schema())
    return reader, reader.partitions()


# Entries that the broker delivers to no consumer


@pytest.mark.parametrize(
    "unseen", [{9}, {7, 8, 9}, {0, 4, 9}, set(range(10)), set(range(1, 10)), {0}, {3, 4}]
)
def test_a_range_can_end_in_markers(
    url: str, monkeypatch: pytest.MonkeyPatch, unseen: set[int]
) -> None:
    hidden(monkeypatch, unseen)
    publish(url, *numbered(10))
    rows = read_batch(url, pollTimeoutMs=5000, minPartitions=2)
    assert values(rows) == [b"%05d" % each for each in range(10) if each not in unseen]


def test_a_range_can_begin_in_a_batch_and_end_in_markers(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden(monkeypatch, {1, 2})
    sent = publish(url, *numbered(4), batch=4)
    publish(url, b"marker", b"marker")
    start = f'{{"t": "{sent[0].ledger_id()}:{sent[0].entry_id()}:2"}}'
    assert values(read_batch(url, startingOffsets=start, pollTimeoutMs=5000)) == numbered(2, 2)


# Deletions during a read


@pytest.mark.parametrize("upto", [150, 290, 300])
def test_messages_that_expire_during_a_read_are_read(broker: BrokerThread, upto: int) -> None:
    """A time-to-live also moves the cursors of readers, past messages that were not sent yet."""
    publish(broker.url, *numbered(300))
    with slow_read(broker.url) as reading:
        first = next(reading)
        expire(broker, upto)
        rest = [row for batch in reading for row in batch]
    assert values([*first, *rest]) == numbered(300)


@pytest.mark.parametrize("after", [0, 3])
def test_a_topic_recreated_between_plan_and_read_is_data_loss(
    broker: BrokerThread, after: int
) -> None:
    url = broker.url
    publish(url, *numbered(10))
    start = Position(*_place(url, 3))
    for options, fails in (({}, True), ({"failOnDataLoss": "false"}, False)):
        reader, [whole] = planned(url, **options)
        behind = ReadRange(whole.topic, whole.partition, start, whole.end)
        broker.delete_topic(TOPIC)
        publish(url, *numbered(after, 100))
        if fails:
            with pytest.raises(DataLossError, match="deleted and created again"):
                read_ranges(reader, [behind])
        else:
            assert read_ranges(reader, [behind]) == []
        broker.delete_topic(TOPIC)
        publish(url, *numbered(10))
        start = Position(*_place(url, 3))


def _place(url: str, at: int) -> tuple[int, int]:
    row = read_batch(url, includeMetadata="full")[at]
    return row["__ledgerId"], row["__entryId"]


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_deleted_during_a_read_is_an_error_and_no_shorter_batch(
    broker: BrokerThread, again: bool
) -> None:
    publish(broker.url, *numbered(300))
    with slow_read(broker.url, **HURRIED) as reading:
        next(reading)
        broker.delete_topic(TOPIC)
        if again:
            publish(broker.url, *numbered(300))
        with pytest.raises((DataLossError, encore.PulsarException)) as caught:
            list(reading)
    assert TOPIC in str(caught.value)


def test_an_unload_during_a_read_loses_nothing(broker: BrokerThread) -> None:
    publish(broker.url, *numbered(300), batch=3)
    with slow_read(broker.url) as reading:
        rows = next(reading)
        for batch in reading:
            rows += batch
            if len(rows) % 30 == 0:
                broker.unload(TOPIC)
    assert values(rows) == numbered(300)


# A broker that is down


def test_an_outage_during_a_read_is_a_short_error_after_the_configured_time(
    broker: BrokerThread,
) -> None:
    publish(broker.url, *numbered(300))
    with slow_read(broker.url, **HURRIED) as reading:
        next(reading)
        broker.outage()
        began = time.monotonic()
        with pytest.raises((StalledError, encore.TransportError)) as caught:
            list(reading)
        assert time.monotonic() - began < 20
    assert TOPIC in str(caught.value)
    assert "the broker reports more messages" not in str(caught.value), "it says nothing"
    broker.resume()
    assert values(read_batch(broker.url, **HURRIED)) == numbered(300)


def test_a_short_outage_during_a_read_loses_nothing(broker: BrokerThread) -> None:
    publish(broker.url, *numbered(300))
    with slow_read(broker.url) as reading:
        rows = next(reading)
        broker.outage(0.3)
        rows += [row for batch in reading for row in batch]
    assert values(rows) == numbered(300)


def test_an_outage_between_batches_is_an_error_and_the_query_can_continue(
    broker: BrokerThread,
) -> None:
    publish(broker.url, *numbered(10))
    query = Stream(
        broker.url, startingOffsets="earliest", subscription="s", latestOffsetPollMs=0, **HURRIED
    ).run()
    broker.outage()
    began = time.monotonic()
    with pytest.raises(encore.TransportError):
        query.step()
    assert time.monotonic() - began < 25, "two attempts of a second each, and an ack"
    broker.resume()
    publish(broker.url, *numbered(10, 10))
    assert query.run().values() == numbered(20)
    query.reader.stop()


def test_the_next_check_finds_a_broker_that_is_back(broker: BrokerThread) -> None:
    """The check does not wait for the backoff of a connection that was lost long ago."""
    publish(broker.url, *numbered(10))
    once = {**HURRIED, "fetchOffset__numRetries": 0, "latestOffsetPollMs": 0}
    query = Stream(broker.url, startingOffsets="earliest", **once).run()
    broker.outage()
    for _ in range(3):
        with pytest.raises(encore.TransportError):
            query.step()
        time.sleep(0.04)
    broker.resume()
    publish(broker.url, *numbered(10, 10))
    assert query.run().values() == numbered(20)


def test_a_short_outage_between_batches_is_not_reported(broker: BrokerThread) -> None:
    publish(broker.url, *numbered(10))
    query = Stream(broker.url, startingOffsets="earliest", latestOffsetPollMs=0)
    broker.outage(0.3)
    assert query.run().values() == numbered(10)


# Logins


def secured(**expires_s: float | None) -> BrokerThread:
    accepted = tuple(
        Credential(data=name, role="reader", expires_s=after) for name, after in expires_s.items()
    )
    return BrokerThread(
        BrokerSettings(credentials=accepted, auth_refresh_check_s=0.05, keep_acked=True)
    )


def token_of(text: str) -> dict[str, str]:
    return {
        "pulsar__client__authPluginClassName": "AuthenticationToken",
        "pulsar__client__authParams": text,
        **{name: str(value) for name, value in HURRIED.items()},
    }


@pytest.mark.parametrize("when", ["between plan and read", "while it is read"])
@pytest.mark.parametrize("renewed", [True, False])
def test_a_token_can_expire_during_a_query(tmp_path: Path, when: str, renewed: bool) -> None:
    """A token from a file is read again. A fixed token causes an error that names it."""
    file = tmp_path / "token"
    file.write_text("early")
    with secured(early=60.0, late=None) as broker:
        publish(broker.url, *numbered(300), token="late")
        options = token_of(f"file://{file}" if renewed else "token:early")

        def expire_now() -> None:
            file.write_text("late")
            pass_time(broker, 61)

        with slow_read(broker.url, **options) as reading:
            rows: list[dict[str, Any]] = []
            try:
                if when == "while it is read":
                    rows += next(reading)
                expire_now()
                rows += [row for batch in reading for row in batch]
            except encore.EncoreError as error:
                assert not renewed, error
                assert isinstance(error, AuthenticationError), error
                return
        assert renewed, "a token that expired is no good"
        assert values(rows) == numbered(300)


# Many partitions


def test_a_thousand_partitions_cost_a_few_requests_each(broker: BrokerThread) -> None:
    url = broker.url
    broker.create_partitioned_topic("many", 1000)
    for number in range(0, 1000, 100):
        publish(url, *numbered(30), topic=f"{TOPIC[:-1]}many-partition-{number}")
    broker.forget_commands()
    _, ranges = planned(url, topic="many")
    assert len(ranges) == 10, "a task for each partition that has something to be read"
    asked = Counter(each.type for each in broker.recorded(direction="in"))
    assert asked["CONNECT"] <= 2
    for name in ("LOOKUP", "SUBSCRIBE", "GET_LAST_MESSAGE_ID", "CLOSE_CONSUMER"):
        assert asked[name] <= 1000, name
    assert asked.total() <= 4100

    broker.forget_commands()
    threads = threading.active_count()
    query = Stream(
        url, topic="many", startingOffsets="earliest", maxEntriesPerTrigger=100, subscription="s"
    )
    assert query.run().sizes == [100, 100, 100]
    assert Counter(row["__topic"] for row in query.rows).most_common()[-1][1] == 30
    # The limit is shared evenly: after the first batch each of the ten has had its tenth.
    assert set(Counter(row["__topic"] for row in query.rows[:100]).values()) == {10}
    asked = Counter(each.type for each in broker.recorded(direction="in"))
    assert asked["CONNECT"] <= 2
    assert asked["SUBSCRIBE"] <= 3 * 1000 + 3 * 10, (
        "one to ask by, one to see whether it is there, one that holds, the tasks'"
    )
    assert threading.active_count() <= threads + 2
    broker.forget_commands()
    query.progress._polled_s = float("-inf")
    assert query.step() == 0
    asked = Counter(each.type for each in broker.recorded(direction="in"))
    assert set(asked) <= {"GET_LAST_MESSAGE_ID", "ACK", "PING", "PONG"}
    assert asked["GET_LAST_MESSAGE_ID"] == 1000, "one for each, however often Spark asks"
    query.reader.stop()


def test_two_attempts_of_one_task_can_read_at_the_same_time(url: str) -> None:
    """Speculative execution does this: neither attempt disturbs the other."""
    publish(url, *numbered(3000), batch=10)
    reader, [whole] = planned(url, pulsar__reader__receiverQueueSize=20)
    found: list[list[bytes]] = []

    def attempt() -> None:
        found.append(values(read_ranges(reader, [whole])))

    attempts = [threading.Thread(target=attempt) for _ in range(2)]
    for each in attempts:
        each.start()
    for each in attempts:
        each.join(60)
    assert found == [numbered(3000), numbered(3000)]


# Topics that change


def test_partitions_added_during_a_query_are_read(broker: BrokerThread) -> None:
    url = broker.url
    broker.create_partitioned_topic("parted", 2)
    options = {"topic": "parted", "startingOffsets": "earliest", "subscription": "s"}
    query = Stream(url, partitionDiscoveryIntervalMs=0, latestOffsetPollMs=0, **options)
    publish(url, *numbered(6), topic="parted")
    assert sorted(query.run().values()) == numbered(6)
    broker.create_partitioned_topic("parted", 5)
    publish(url, *numbered(10, 6), topic="parted")
    assert sorted(query.run().values()) == numbered(16)
    assert {row["__topic"][-1] for row in query.rows} == set("01234")
    query.reader.stop()


def test_partitions_added_during_available_now_are_read_in_the_next_run(
    broker: BrokerThread,
) -> None:
    url = broker.url
    broker.create_partitioned_topic("parted", 2)
    publish(url, *numbered(6), topic="parted")
    options: dict[str, Any] = {
        "topic": "parted",
        "startingOffsets": "earliest",
        "partitionDiscoveryIntervalMs": 0,
        "latestOffsetPollMs": 0,
        "maxEntriesPerTrigger": 2,
    }
    query = Stream(url, **options)
    query.reader.prepareForTriggerAvailableNow()
    query.step()
    broker.create_partitioned_topic("parted", 4)
    publish(url, *numbered(8, 6), topic="parted")
    assert sorted(query.run().values()) == numbered(6)
    again = Stream(url, query.offset, **options)
    again.reader.prepareForTriggerAvailableNow()
    assert sorted(again.run().values()) == numbered(8, 6)


def test_a_range_with_its_end_before_its_start_is_empty(url: str) -> None:
    """Spark asks twice where a query begins when its first batch crashes."""
    publish(url, *numbered(5))
    query = Stream(url)
    end = query.offset
    publish(url, *numbered(5, 5))
    begin = Stream(url).offset
    assert query.reader.partitions(begin, end) == []
    reader, [whole] = planned(url)
    turned = ReadRange(whole.topic, whole.partition, whole.end, EARLIEST)
    assert read_ranges(reader, [turned]) == []


def test_an_empty_topic_gives_no_batch_until_a_message_arrives(url: str) -> None:
    publish(url)
    query = Stream(url, startingOffsets="earliest", latestOffsetPollMs=0)
    assert query.reader.latestOffset(query.offset, ReadAllAvailable()) == query.offset
    assert query.reader.partitions(query.offset, query.offset) == []
    publish(url, *numbered(3))
    assert query.run().values() == numbered(3)


@pytest.mark.filterwarnings("ignore:Pickle, copy, and deepcopy support:DeprecationWarning")
def test_a_client_that_cannot_be_pickled_is_created_where_it_is_used(url: str) -> None:
    """`clientFactory` is a name.

    The client that it creates, with its locks, stays in its process.
    """
    publish(url, *numbered(3))
    rows = read_batch(url, clientFactory="failing_kit:client_with_a_lock")
    assert values(rows) == numbered(3)
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(MADE)
    with pytest.raises(encore.ConfigurationError, match=r"must return a pulsar_encore\.Client"):
        read_batch(url, clientFactory="failing_kit:no_client")


def test_an_unavailable_codec_is_an_error_that_names_it_or_the_value_is_left_out(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    publish(url, b"a")
    sent = publish(url, b"b" * 500, compression_type=encore.CompressionType.LZ4)
    publish(url, b"c")
    place = f"{sent[0].ledger_id()}:{sent[0].entry_id()}"
    # the package that decompresses it is not installed
    monkeypatch.setitem(sys.modules, "cramjam", None)
    with pytest.raises(DataLossError, match=rf"{place} of {TOPIC} cannot be read here: .*cramjam"):
        read_batch(url)
    assert [row["value"] for row in read_batch(url, failOnDataLoss="false")] == [b"a", b"c"]
    assert f"{place} of {TOPIC} cannot be read here" in caplog.text
    schema = StructType([each for each in source(url).schema() if each.name == "__topic"])
    assert len(read_batch(url, schema)) == 3  # the query does not read values


def test_a_topic_deleted_between_plan_and_read_is_data_loss(
    broker: BrokerThread, caplog: pytest.LogCaptureFixture
) -> None:
    publish(broker.url, *numbered(5))
    options = {"pulsar__client__operationTimeoutMs": 1000}
    strict, allowing = (
        source(broker.url, startingOffsets="earliest", failOnDataLoss=each, **options)
        for each in ("true", "false")
    )
    reader, other = strict.reader(strict.schema()), allowing.reader(allowing.schema())
    ranges = reader.partitions()
    broker.delete_topic(TOPIC)
    with pytest.raises(DataLossError, match="the topic was deleted"):
        read_ranges(reader, ranges)
    assert read_ranges(other, ranges) == []
    assert "the topic was deleted" in caplog.text
